from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forkyard.report import shown
from forkyard.run import Headline, Lines, Live
from forkyard.run.check import grouped
from forkyard.run.progress import outcome_line
from forkyard.trace import Slot, Status, Trace

HOSTILE = "\x1b]0;x\x07\x1b[2J"


def record(task: str = "calc", **fields: Any) -> dict[str, Any]:
    trace = Trace(task=task, slot=Slot("r", fields.pop("sample", 0)))
    return {**trace.to_record(), "status": "SCORED", "reward": 1.0, **fields}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"reward": 12 / 13, "passed": 12, "total": 13, "steps": 6}, "calc #0: reward 0.92 (12/13) in 6 steps"),
        ({"steps": 1, "sample": 3}, "calc #3: reward 1.00 in 1 step"),
        ({"reward": None, "steps": 2}, "calc #0: no primary reward in 2 steps"),
        ({"status": "INDETERMINATE", "reward": None, "reason": "a\nb"}, "calc #0: INDETERMINATE: a\n    b"),
        ({"status": "BUDGET", "reward": None, "reason": None}, "calc #0: BUDGET: no reason was given"),
        (
            {"status": "SCORING_ERROR", "reason": "a" * 300 + "z" * 300},
            f"calc #0: SCORING_ERROR: {'a' * 150} ... {'z' * 150}",
        ),
        (
            {
                "status": "INFRASTRUCTURE_ERROR",
                "reason": "until the agent's time was up",
                "info": {"earlier_attempts": [{"of": "episode"}, {"of": "agent"}]},
            },
            "calc #0: INFRASTRUCTURE_ERROR: until the agent's time was up (the last of 3 attempts)",
        ),
        (
            {"steps": 1, "info": {"earlier_attempts": [{"of": "episode"}]}},
            "calc #0: reward 1.00 in 1 step (the last of 2 attempts)",
        ),
        (
            {"steps": 1, "info": {"earlier_attempts": [{"of": "episode"}], "regraded_from": "another's"}},
            "calc #0: reward 1.00 in 1 step",
        ),
        ({"task": HOSTILE}, "\\x1b]0;x\\x07\\x1b[2J #0: reward 1.00 in 0 steps"),
        ({"status": "SCORING_ERROR", "reason": HOSTILE}, "calc #0: SCORING_ERROR: \\x1b]0;x\\x07\\x1b[2J"),
    ],
)
def test_a_finished_rollout_is_one_line_and_what_a_command_said_of_it(fields: dict[str, Any], line: str) -> None:
    stream = io.StringIO()
    Lines(stream).finished(record(**fields))
    assert stream.getvalue() == line + "\n"


BROKEN = {"exit_code": 127, "output_tail": "one\n" * 40 + "/tests/test.sh: line 1: python3: command not found\n"}


def test_what_the_tests_printed_stands_below_a_rollout_they_do_not_score_with_its_end_kept() -> None:
    stream = io.StringIO()
    Lines(stream).finished(record(status="INDETERMINATE", reward=None, reason="no reward", verifier=BROKEN))
    said = stream.getvalue().splitlines()
    assert said[:2] == [
        "calc #0: INDETERMINATE: no reward",
        "  the tests ended with exit code 127; the end of the output:",
    ]
    assert said[-1] == "    /tests/test.sh: line 1: python3: command not found" and len(said) == 14


def test_the_same_output_is_shown_once() -> None:
    stream = io.StringIO()
    heard = Lines(stream)
    for sample in range(3):
        heard.finished(record(status="INDETERMINATE", reward=None, reason="none", verifier=BROKEN, sample=sample))
    assert stream.getvalue().count("command not found") == 1


def test_a_solution_that_failed_says_how_it_ended_and_what_it_printed() -> None:
    stream = io.StringIO()
    solved = {"oracle": {"exit_code": 1, "output": f"cd: /nope: No such file or directory\n{HOSTILE}\n"}}
    Lines(stream).finished(record(reward=0.0, info=solved, verifier={"exit_code": 0, "output_tail": ""}))
    assert stream.getvalue().splitlines() == [
        "calc #0: reward 0.00 in 0 steps",
        "  solve.sh ended with exit code 1; the end of the output:",
        "    cd: /nope: No such file or directory",
        "    \\x1b]0;x\\x07\\x1b[2J",
    ]


def test_what_was_scored_says_no_more_than_its_line() -> None:
    stream = io.StringIO()
    Lines(stream).finished(record(reward=0.0, verifier=BROKEN))
    Lines(stream).finished(record(info={"oracle": {"exit_code": 1, "output": "late"}}))
    assert stream.getvalue().splitlines() == ["calc #0: reward 0.00 in 0 steps", "calc #0: reward 1.00 in 0 steps"]


def test_the_last_line_says_how_many_how_long_and_where() -> None:
    stream = io.StringIO()
    Lines(stream).end(6, 150.6, Path("runs/r/traces.jsonl"))
    Lines(stream).end(1, 0.4, Path("t"))
    assert stream.getvalue() == "6 rollouts in 151s -> runs/r/traces.jsonl\n1 rollout in 0s -> t\n"


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    Lines(Gone()).finished(record())


def test_the_live_view_shows_what_runs_and_leaves_the_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, height=30, color_system=None)
    live = Live(console)
    live.note("something [bold]to[/bold] know")
    live.begin(Headline("r", "bash", "gpt", 8, 2))
    running = Trace(task=f"slow{HOSTILE}", slot=Slot("r", 1), steps=3)
    live.phase(running, "fork")
    live.phase(running, "agent")
    live.finished(record(reward=0.5))
    live.finished(record(status=Status.INFRASTRUCTURE_ERROR, reward=None, reason="[red]no"))
    console.print(live._view())
    live.phase(running, "done")
    live.abandon()
    live.abandon()
    live.end(2, 3.0, Path("runs/r/traces.jsonl"))
    shown = stream.getvalue()
    assert "note: something [bold]to[/bold] know" in shown
    assert "r  bash gpt  4/8 done  1 running  mean reward 0.50  1 not scored" in shown
    assert "slow\\x1b]0;x\\x07\\x1b[2J #1" in shown and "agent" in shown and "3 steps" in shown
    assert "calc #0: reward 0.50 in 0 steps" in shown and "INFRASTRUCTURE_ERROR: [red]no" in shown
    assert shown.endswith("2 rollouts in 3s -> runs/r/traces.jsonl\n")
    assert HOSTILE not in shown and "\x1b]0;" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_more_rollouts_than_the_terminal_has_lines_are_counted() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=10)
    live = Live(console)
    for sample in range(50):
        live.phase(Trace(task="t", slot=Slot("r", sample)), "agent")
    with console.capture() as captured:
        console.print(live._view())
    assert "and 44 more" in captured.get()


def test_the_rollouts_of_one_agent_in_an_episode_are_told_apart() -> None:
    out = io.StringIO()
    heard = Lines(out)
    for episode, agent in (("e", "agent"), ("e", "judge"), ("e", "agent"), ("f", "agent")):
        heard.finished(record(episode=episode, env="best-of-n", agent=agent, reward=1.125))
    who = [line.partition(":")[0] for line in out.getvalue().splitlines()]
    assert who == ["calc #0 agent", "calc #0 judge", "calc #0 agent 2", "calc #0 agent"]


def test_a_reward_is_rounded_as_the_report_rounds_it() -> None:
    assert "reward 1.13" in outcome_line(record(reward=1.125)) and shown(1.125) == "1.13"


def test_a_task_of_which_the_same_is_said_twice_is_named_once() -> None:
    assert grouped([("wrong", "a"), ("wrong", "a"), ("wrong", "b")]) == ["wrong (2 tasks: a, b)"]
