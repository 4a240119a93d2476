"""What a sample is made of, by hand; what is left out and what cannot be one is counted."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.report import Choice
from forkyard.report.export import Tally, samples
from forkyard.trace import Message, ModelCall, Reward, Slot, Status, Trace, Usage
from forkyard.trace.store import lines_of

ASK: Message = {"role": "user", "content": "hello"}
MORE: Message = {"role": "user", "content": "more"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
SCORED = Choice(status=Status.SCORED)


def said(content: str | None, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def trace_of(*calls: tuple[list[Message], Message], reward: float | None = 1.0, **fields: Any) -> Trace:
    """A rollout whose model was asked those; keys of `told` go to the graph, one value for each call."""
    told = fields.pop("told", {})
    trace = Trace("t", slot=Slot("r", 0, episode="e"), harness="bash", model="m", **fields)
    for number, (prompt, reply) in enumerate(calls):
        node = trace.graph.commit(prompt, reply, tools=TOOLS, **{name: values[number] for name, values in told.items()})
        trace.record_call(ModelCall("m", node=node, usage=Usage(1, 1)))
        trace.messages[:] = [*prompt, reply]
    if reward is not None:
        trace.rewards["reward"] = Reward(reward)
    trace.stop("agent_completed")
    trace.settle(Status.SCORED)
    return trace


def written(path: Path, *traces: Trace | dict[str, Any]) -> Path:
    path.write_bytes(lines_of(*(one.to_record() if isinstance(one, Trace) else one for one in traces)))
    return path


def of(path: Path, fmt: str, choice: Choice = SCORED) -> tuple[list[dict[str, Any]], list[str]]:
    tally = Tally()
    return list(map(json.loads, samples([path], fmt, choice, tally))), list(tally.notes)


RETOKENISED = {
    "prompt_token_ids": [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 99, 5, 6]],
    "token_ids": [[4, 5], [7, 8], [9]],
    "logprobs": [[-0.1, -0.2], [-0.3, -0.4], [-0.5]],
}


def test_the_tokens_of_each_history_are_a_sample_and_a_shared_reply_is_learned_from_once(tmp_path: Path) -> None:
    trace = trace_of(
        ([ASK], said("x")), ([ASK, said("x"), MORE], said("y")), ([ASK, said("x"), MORE], said("z")), told=RETOKENISED
    )
    found, notes = of(written(tmp_path / "a.jsonl", trace), "tokens")
    about = {"reward": 1.0, "run": "r", "task": "t", "agent": "agent", "model": "m", "status": "SCORED"}
    about |= {"sample": 0, "episode": "e", "id": trace.id, "stop": "agent_completed"}
    first = {
        "token_ids": [1, 2, 3, 4, 5, 6, 7, 8],
        "prompt_len": 3,
        "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1],
        "logprobs": [0.0, 0.0, 0.0, -0.1, -0.2, 0.0, -0.3, -0.4],
    }
    second = {
        "token_ids": [1, 2, 3, 99, 5, 6, 9],
        "prompt_len": 6,
        "loss_mask": [0, 0, 0, 0, 0, 0, 1],
        "logprobs": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5],
    }
    assert found == [{**first, **about, "branch": 0}, {**second, **about, "branch": 1}]
    assert notes == ["2 samples of 1 rollout"]


def test_a_reply_that_two_histories_share_is_masked_in_the_second(tmp_path: Path) -> None:
    calls = (([ASK], said("x")), ([ASK, said("x"), MORE], said("y")), ([ASK, said("x"), ASK], said("z")))
    told = {"prompt_token_ids": [[1], [1, 2, 3], [1, 2, 4]], "token_ids": [[2], [5], [6]]}
    path = written(tmp_path / "a.jsonl", trace_of(*calls, told=told))
    found, notes = of(path, "tokens")
    assert [(one["token_ids"], one["loss_mask"], one["prompt_len"]) for one in found] == [
        ([1, 2, 3, 5], [0, 1, 0, 1], 1),
        ([1, 2, 4, 6], [0, 0, 0, 1], 3),
    ]
    assert [one["logprobs"] for one in found] == [None, None]
    assert notes[1:] == ["exported: 2 without logprobs"]
    talks, notes = of(path, "messages")
    assert [one["messages"] for one in talks] == [
        [ASK, said("x"), MORE, said("y")],
        [ASK, {**said("x"), "weight": 0}, ASK, said("z")],
    ]
    assert [one["tools"] for one in talks] == [TOOLS, TOOLS]
    assert notes[1].startswith('exported: 1 with replies of "weight": 0')


def test_a_shared_reply_is_learned_from_in_the_second_history_when_the_first_is_no_sample(tmp_path: Path) -> None:
    picture: Message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    calls = (([ASK], said("x")), ([ASK, said("x"), picture], said("y")), ([ASK, said("x"), MORE], said("z")))
    (found,), notes = of(written(tmp_path / "a.jsonl", trace_of(*calls)), "messages")
    assert (found["branch"], found["messages"]) == (1, [ASK, said("x"), MORE, said("z")])
    assert notes[1] == "not exported: 1 with pictures or other parts that are no text"


def test_a_conversation_keeps_calls_results_and_reasoning_and_ends_with_a_reply(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u001b"}'}}
    asked = said(None, tool_calls=[call], reasoning_content="hm", provider_state=[{"secret": "sig"}])
    result: Message = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]}
    trace = trace_of(([ASK], asked), ([ASK, asked, result], said("seven")))
    trace.messages.append({"role": "tool", "tool_call_id": "c2", "content": "never sent"})
    (found,), notes = of(written(tmp_path / "a.jsonl", trace), "messages")
    assert found["messages"] == [
        ASK,
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        said("seven"),
    ]
    assert notes == ["1 sample of 1 rollout"]


def test_an_assistants_message_that_came_with_the_prompt_is_not_learned_from(tmp_path: Path) -> None:
    shown: list[Message] = [ASK, said("an example"), MORE]
    graphless = trace_of()
    graphless.messages.extend([*shown, said("mine")])
    graphless.record_call(ModelCall("m"))
    for trace in (trace_of((shown, said("mine"))), graphless):
        (found,), _ = of(written(tmp_path / "a.jsonl", trace), "messages")
        assert found["messages"] == [ASK, {**said("an example"), "weight": 0}, MORE, said("mine")]


def test_what_some_calls_told_no_ids_of_is_no_gap_and_is_not_learned_from(tmp_path: Path) -> None:
    talk = [ASK, said("x"), MORE]
    calls = (([ASK], said("x")), (talk, said("y")), ([*talk, said("y"), MORE], said("z")))
    told: dict[str, list[list[int]]] = {"prompt_token_ids": [[], [1, 2, 3], []], "token_ids": [[], [4], []]}
    (found,), notes = of(written(tmp_path / "a.jsonl", trace_of(*calls, told=told)), "tokens")
    assert (found["token_ids"], found["loss_mask"]) == ([1, 2, 3, 4], [0, 0, 0, 1])
    assert "1 with replies whose token ids were not told" in notes[1]


def test_everything_that_is_no_sample_is_counted_with_the_reason(tmp_path: Path) -> None:
    picture: Message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    judge = trace_of(([ASK], said("x")), agent="judge", reward=None)
    judge.trainable = False
    failed = trace_of(([ASK], said("x")))
    failed.status = Status.INDETERMINATE
    damaged = {**trace_of(([ASK], said("x"))).to_record(), "messages": 7}
    odd = trace_of(([ASK], said("x"))).to_record()
    odd["branches"] = [{"at": 0}, {"parent": 0, "at": 1, "sampled": True, "token_ids": ["4"]}]
    path = written(
        tmp_path / "a.jsonl",
        *({**one.to_record(), "sample": place} for place, one in enumerate([judge, failed])),
        *({**record, "sample": place} for place, record in enumerate([damaged, odd], 2)),
        {**trace_of().to_record(), "sample": 4},
        {**trace_of(([picture], said("x"))).to_record(), "sample": 5},
        {**trace_of(([ASK], said("x")), reward=0.2).to_record(), "sample": 6},
        {**trace_of(([ASK], said("x")), reward=None).to_record(), "sample": 7},
        {"status": "SCORED", "reward": 1},
    )
    found, notes = of(path, "messages", Choice(status=Status.SCORED, min_reward=0.5))
    assert [one["sample"] for one in found] == [3]
    assert notes[0] == "1 sample of 1 rollout"
    assert sorted(notes[1].removeprefix("left out: ").split(", ")) == [
        "1 with status INDETERMINATE",
        "3 with no reward of at least 0.5",
    ]
    assert sorted(notes[2].removeprefix("not exported: ").split(", ")) == [
        "1 with pictures or other parts that are no text",
        "1 without a reply of a model",
        "2 too damaged to be read",
    ]
    found, notes = of(path, "tokens")
    assert found == [] and "1 of judges and simulated users" in notes[1]
    assert "3 without token ids" in notes[2] and "1 with token ids that are no numbers" in notes[2]
    found, notes = of(path, "messages")
    assert found[-1]["reward"] is None and notes[-1] == "exported: 1 without a reward"


def test_of_lines_of_one_slot_the_last_counts_and_runs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    old, new = trace_of(([ASK], said("old"))).to_record(), trace_of(([ASK], said("new"))).to_record()
    path = written(tmp_path / "a.jsonl", old, {**new, "episode": "later"})
    found, notes = of(path, "messages")
    assert [one["messages"][-1]["content"] for one in found] == ["new"]
    assert notes[1] == "left out: 1 replaced by a later line"


def test_a_bad_line_is_named_before_the_first_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", trace_of(([ASK], said("x"))))
    path.write_bytes(path.read_bytes() + b"no line\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 2"):
        next(samples([path], "messages", SCORED, Tally()))


def test_a_large_run_is_exported_a_rollout_at_a_time(tmp_path: Path) -> None:
    record = trace_of(([ASK], said("x" * 50_000))).to_record()
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for sample in range(150):
            file.write(lines_of({**record, "sample": sample, "id": str(sample)}))
    tracemalloc.start()
    try:
        written_bytes = sum(map(len, samples([path], "messages", SCORED, Tally())))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000 < written_bytes
    finally:
        tracemalloc.stop()
