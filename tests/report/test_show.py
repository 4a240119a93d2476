"""A rollout as a person reads it, and that nothing in a record can pass for something else."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkyard.env.env import SingleAgentEnvConfig
from forkyard.env.single import SingleAgentEnv
from forkyard.env.user_sim import UserSimConfig, UserSimEnv
from forkyard.errors import ConfigError
from forkyard.harness import BashHarness
from forkyard.report import Choice, named, rollout_text, rollouts_text
from forkyard.report.export import Tally, samples
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import Message, ModelCall, Status, Trace, Usage
from forkyard.trace.store import Record, lines_of
from forkyard.values import strict_json
from tests.env.parts import Says, answering, play, seat
from tests.env.test_user_sim import DONE, TASK
from tests.model.provider import message, reply
from tests.report.test_export import ASK, MORE, said, trace_of, written

ALL = Choice()
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls\\necho", "n": 2}'}}


def shown(path: Path, name: str = "1", *, full: bool = False) -> str:
    (which,) = named(path, name, ALL)
    return rollout_text(path, which, full=full)


def a_talk() -> Trace:
    asked = said("Let me look.", tool_calls=[CALL], reasoning_content="Files first.\nThen words.")
    result: Message = {"role": "tool", "tool_call_id": "c1", "content": "exit 0\na.txt"}
    trace = trace_of(([ASK], asked), ([ASK, asked, result], said("One file.")))
    trace.id, trace.started = "ab" * 16, 1_000_000_000.0
    for number, call in enumerate(trace.calls):
        call.started, call.seconds, call.cost_usd = trace.started + number, 0.5, 0.01
    trace.calls[1].finish_reason = "length"
    trace.record_call(ModelCall("m", error="HTTP 500"))
    trace.record_call(ModelCall("judge-m", purpose="judge", usage=Usage(7, 1), cost_usd=0.02))
    trace.metrics["lines"] = 3.0
    trace.verifier.update(mode="shared", exit_code=0, code="scored", timed_out=False, output_tail="ok 1\nok 2\n")
    trace.timing.agent_ms = 2000.0
    return trace


def test_a_rollout_reads_from_top_to_bottom(tmp_path: Path) -> None:
    trace = a_talk()
    run = tmp_path / "run"
    kept = run / "rollouts" / trace.id / "artifacts"
    kept.mkdir(parents=True)
    (kept / "out.txt").write_text("12345")
    (kept / "odd\x1b[2J").symlink_to("/etc/passwd")
    assert shown(written(run / "traces.jsonl", trace)) == (
        f"""t #0, rollout 1 of run r: {trace.id}
agent agent of env single-agent, harness bash, model m, provider """
        f"""
SCORED, reward 1, stop agent_completed
rewards: reward 1
metrics: lines 3
2001-09-09 01:46:40Z, 2 steps, tokens 2 in, 2 out, $0.0200, agent 2 s

[1] user
    hello

[2] assistant: after 0.0 s, took 0.5 s, tokens 1 in, 1 out, $0.0100
  thinks:
    Files first.
    Then words.
  says:
    Let me look.
  calls bash (c1)
    command:
      ls
      echo
    n: 2

[3] tool bash (c1)
    exit 0
    a.txt

[4] assistant: after 1.0 s, took 0.5 s, tokens 1 in, 1 out, $0.0100, length
    One file.

agent's call of m, failed: HTTP 500
judge's call of judge-m, tokens 7 in, 1 out, $0.0200

verifier:
  mode: shared
  exit_code: 0
  code: scored
  output_tail:
    ok 1
    ok 2

2 files kept in {run}/rollouts/{trace.id}
  artifacts/odd\\x1b[2J (11 bytes)
  artifacts/out.txt (5 bytes)"""
    )


def test_histories_are_told_apart_and_what_they_share_is_said_once(tmp_path: Path) -> None:
    trace = trace_of(([ASK], said("x")), ([ASK, said("x"), MORE], said("y")), ([ASK, said("x"), ASK], said("z")))
    text = shown(written(tmp_path / "a.jsonl", trace))
    heads = [line for line in text.splitlines() if line.startswith(("[", "history", "in the"))]
    assert [head.partition(":")[0] for head in heads] == [
        "history 1 of 2",
        *("[1] user", "[2] assistant", "[3] user", "[4] assistant"),
        "history 2 of 2, goes on after [2]",
        *("[5] user", "[6] assistant"),
    ]
    trace.messages.append(said("to nobody"))
    assert "in the conversation of the harness alone\n\n[7] assistant\n    to nobody" in shown(
        written(tmp_path / "b.jsonl", trace)
    )


def test_what_is_long_is_folded_to_its_beginning_and_end(tmp_path: Path) -> None:
    long: Message = {"role": "user", "content": "\n".join(f"line {number}" for number in range(100))}
    path = written(tmp_path / "a.jsonl", trace_of(([long], said("w" * 5000 + "!"))))
    text = shown(path)
    assert "    line 14\n    [70 lines left out; --full shows them]\n    line 85\n" in text
    assert "w [4401 characters left out; --full shows them] w" in text and "w!\n" in f"{text}\n"
    full = shown(path, full=True)
    assert "left out" not in full and "    line 50\n" in full and "w" * 5000 in full


HOSTILE = "\x1b[2J\x9b1m\r\x00\u202e\u2028\n[9] assistant: reward 1\nverifier:\n  code: scored"


ODD: list[Any] = [HOSTILE, 7, -1e300, None, True, [HOSTILE, 1], {HOSTILE: {HOSTILE: HOSTILE}}, [[{"x": []}]]]


def hostile(value: Any) -> Iterator[Any]:
    """The same with one place after the other taken by what nobody expects there."""
    yield from ODD
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            for other in hostile(value[key]):
                changed = copy.copy(value)
                changed[key] = other
                yield changed


def test_no_record_raises_moves_the_cursor_or_passes_for_a_line_of_ours(tmp_path: Path) -> None:
    trace = a_talk()
    trace.graph.commit([ASK, MORE], said("b"), prompt_token_ids=[1], token_ids=[2], logprobs=[-0.5])
    trace.record_error(ValueError("x"))
    trace.info["oracle"] = {"output": "a\nb"}
    read = 0
    place = tmp_path / "traces.jsonl"
    for record in hostile(json.loads(strict_json(trace.to_record()))):
        if not isinstance(record, dict):
            continue
        try:
            text = rollout_text(place, (1, record))
            read += 1
        except ConfigError as err:
            text = str(err)
        assert all(char.isprintable() for char in text.replace("\n", "").replace("\t", ""))
        assert not any(line.startswith(("[9]", "  code: scored\\")) for line in text.split("\n"))
        assert text.count("\nverifier:\n") <= 1
    assert read > 500


def test_hostile_records_make_rows_and_samples_or_are_counted(tmp_path: Path) -> None:
    trace = a_talk()
    trace.graph.commit([ASK, MORE], said("b"), prompt_token_ids=[1], token_ids=[2], logprobs=[-0.5])
    changed = hostile(json.loads(strict_json(trace.to_record())))
    records = [{**one, "sample": place} for place, one in enumerate(changed) if isinstance(one, dict)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of(*records))
    text = rollouts_text(path, ALL)
    assert text.count("\n") == len(records) + 1 and all(char.isprintable() for char in text.replace("\n", ""))
    assert max(map(len, text.split("\n"))) < 800
    for fmt in ("messages", "tokens"):
        tally = Tally()
        assert len(list(samples([path], fmt, ALL, tally))) == tally.samples > 100
        assert tally.unfit["too damaged to be read"] > 10


def test_rows_say_what_differs_and_filters_choose(tmp_path: Path) -> None:
    good, bad, lost = (trace_of(([ASK], said("x")), reward=reward) for reward in (1.0, 0.5, None))
    lost.status, lost.reason = Status.INDETERMINATE, "it was never graded\nand more"
    lost.task = "u"
    judge = trace_of(([ASK], said("x")), reward=None, agent="judge")
    judge.trainable = False
    for trace, own in zip((good, bad, lost, judge), "abcd", strict=True):
        trace.id = own * 32
    path = written(tmp_path / "a.jsonl", good, bad, lost, judge)
    head, *told, foot = rollouts_text(path, ALL).splitlines()
    assert head.split("  ")[0] == "#" and foot == "4 rollouts"
    assert head.split() == (
        "# id task sample agent status reward stop steps tokens in tokens out seconds reason".split()
    )
    assert [row.split() for row in told] == [
        f"{row} agent_completed 1 1 1 - {reason}".split()
        for row, reason in (
            ("1 aaaaaaaa t 0 agent SCORED 1", "-"),
            ("2 bbbbbbbb t 0 agent SCORED 0.5", "-"),
            ("3 cccccccc u 0 agent INDETERMINATE -", "it was never graded"),
            ("4 dddddddd t 0 judge SCORED -", "-"),
        )
    ]

    def rows(choice: Choice) -> list[str]:
        return [line[0] for line in rollouts_text(path, choice).splitlines()[1:-1]]

    assert rows(Choice(failed=True)) == ["2", "3"]
    assert rows(Choice(task="u")) == rows(Choice(status=Status.INDETERMINATE)) == ["3"]
    assert rows(Choice(task="t", failed=True)) == ["2"]
    assert rollouts_text(path, Choice(task="none")) == "0 of 4 rollouts"


def test_a_rollout_is_named_by_number_id_or_slot(tmp_path: Path) -> None:
    first, second, third = (trace_of(([ASK], said("x"))) for _ in range(3))
    first.id, second.id, third.id = "a1" * 16, "a2" * 16, "3" * 32
    path = written(tmp_path / "a.jsonl", first, second, {**third.to_record(), "task": "x#1", "sample": 4})

    def places(name: str) -> list[int]:
        return [place for place, _ in named(path, name, ALL)]

    assert [places(name) for name in ("1", "3", "33", "a1", "a2" * 16)] == [[1], [3], [3], [1], [2]]
    assert (places("t#0"), places("t #0"), places("x#1#4")) == ([1, 2], [1, 2], [3])
    with pytest.raises(ConfigError, match="'a' begins 2 ids"):
        named(path, "a", ALL)
    twice = written(tmp_path / "b.jsonl", first, first)
    assert [(place, record["id"]) for place, record in named(twice, "a1", ALL)] == [(1, first.id), (2, first.id)]
    with pytest.raises(ConfigError, match="leave rollout '1' out: it is one of those with status SCORED"):
        named(path, "1", Choice(status=Status.BUDGET))
    for unknown in ("4", "", "t", "t#1", "t#9999999999999", "b"):
        with pytest.raises(ConfigError, match="no rollout"):
            named(path, unknown, ALL)


async def test_an_episode_of_two_is_read_with_who_said_what(local: LocalProvider, tmp_path: Path) -> None:
    env = UserSimEnv(UserSimConfig())
    seats = {"assistant": seat(local, Says("It is cancelled.")), "user": seat(local, Says("Cancel it.", DONE))}
    episode = await play(env, TASK, seats)
    path = written(tmp_path / "traces.jsonl", *episode.traces)
    both = named(path, "order#0", ALL)
    assert sorted(record["agent"] for _, record in both) == ["assistant", "user"]
    texts = {record["agent"]: rollout_text(path, (place, record)) for place, record in both}
    assert "agent assistant of env user-sim" in texts["assistant"]
    assert "[2] user\n    Cancel it.\n\n[3] assistant" in texts["assistant"]
    assert "    It is cancelled." in texts["assistant"] and "    It is cancelled." in texts["user"]
    tally = Tally()
    (sample,) = map(json.loads, samples([path], "messages", ALL, tally))
    assert (sample["agent"], sample["reward"]) == ("assistant", 1.0)
    assert sample["messages"][-1]["content"] == "It is cancelled."
    assert list(tally.notes)[1:] == ["left out: 1 of judges and simulated users"]


async def test_token_ids_that_a_provider_told_a_played_agent_are_exported(local: LocalProvider, tmp_path: Path) -> None:
    answers = [reply(message(commands=["echo hi"]), "tool_calls"), reply("Cancelled.")]
    for answer, prompt, sampled in zip(answers, ([1, 2], [1, 2, 3, 4, 5]), ([3], [6]), strict=True):
        answer["body"]["prompt_token_ids"] = prompt
        answer["body"]["choices"][0]["token_ids"] = sampled
        answer["body"]["choices"][0]["logprobs"] = {"content": [{"token": "t", "logprob": -sampled[0] / 8}]}
    async with answering(*answers) as (gateway, _):
        agent = seat(local, BashHarness(tool_mode="native"), gateway=gateway)
        episode = await play(SingleAgentEnv(SingleAgentEnvConfig()), TASK, {"agent": agent})
    path = written(tmp_path / "traces.jsonl", *episode.traces)
    (sample,) = map(json.loads, samples([path], "tokens", ALL, Tally()))
    assert sample["token_ids"] == [1, 2, 3, 4, 5, 6]
    assert (sample["prompt_len"], sample["loss_mask"]) == (2, [0, 0, 1, 0, 0, 1])
    assert sample["logprobs"] == [0.0, 0.0, -0.375, 0.0, 0.0, -0.75]
    assert (sample["reward"], sample["task"]) == (1.0, "order")
    text = shown(path)
    assert "\n  calls bash (call_0)\n    command: echo hi\n\n[4] tool bash (call_0)\n    " in text
    assert ", tokens 10 in, 5 out\n    Cancelled." in text


def test_one_rollout_of_a_large_run_is_found_in_little_memory(tmp_path: Path) -> None:
    record: Record = trace_of(([ASK], said("x" * 50_000))).to_record()
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for sample in range(150):
            file.write(lines_of({**record, "sample": sample, "id": f"{sample:032x}"}))
    tracemalloc.start()
    try:
        ((place, found),) = named(path, "t#140", ALL)
        assert (place, found["sample"]) == (141, 140)
        assert rollouts_text(path, ALL).count("\n") == 151
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
