"""Is a task directory sound when it is played? By its solution and by an agent that does nothing, some times each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, JudgeError
from forkyard.harness import Harness, NopHarness, OracleHarness
from forkyard.interrupt import Interrupt
from forkyard.run.controls import Controls, controls
from forkyard.run.peeking import FOUND, PeekingHarness
from forkyard.run.plan import plan_of
from forkyard.run.progress import what_was_printed
from forkyard.sandbox import Feature
from forkyard.sandbox.registry import DEFAULT_PROVIDER
from forkyard.secrets import redact
from forkyard.task import Task
from forkyard.task.check import RULES, Finding, Spot
from forkyard.task.check.subject import AGENT_IMAGE, Subject
from forkyard.trace import Status, is_full
from forkyard.trace.store import Record
from forkyard.values import one_line, shown_end

_AT_ONCE = 4
_TESTS, _SOLUTION = "tests/test.sh", "solution/solve.sh"


@dataclass(slots=True)
class Soundness:
    """What playing a task showed; `problems` say why it could not be seen, `signal` that somebody interrupted."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where a task is played, and how often; `asking` are fields of the plan, of how its verifier asks a model."""

    provider: str = DEFAULT_PROVIDER
    base: str | None = None
    repeat: int = 3
    asking: Mapping[str, Any] = field(default_factory=dict)


async def play_task(root: Path, conditions: Conditions) -> Soundness:
    """Play the task at `root` and say what that shows. What cannot be played is told, not raised."""
    found = Soundness()
    subject = Subject(root)
    try:
        plan = plan_of(
            paths=(root,),
            agent={"harness": NopHarness.name, "runtime": {"type": conditions.provider}},
            base=conditions.base,
            unbounded=True,
            **conditions.asking,
        )
        with Interrupt() as interrupt:
            async with controls(plan) as ready:
                spots = await _spots(ready, subject, conditions.repeat, found)
                found.findings = [RULES[name].finding(str(root), _placed(spot, subject)) for name, spot in spots]
        found.signal = interrupt.signal
    except ConfigError as err:
        found.problems += err.problems
    return found


async def _spots(ready: Controls, subject: Subject, repeat: int, found: Soundness) -> Sequence[tuple[str, Spot]]:
    (task,) = ready.tasks
    idle = await _records(ready, task, PeekingHarness(), repeat)
    spots = [*_of_any(idle, found), *_of_idle(idle), *_of_repeats(idle, "doing nothing")]
    if not subject.reference or all(record["status"] == Status.INFRASTRUCTURE_ERROR for record in idle):
        return list(dict.fromkeys(spots))
    solver = OracleHarness()
    if problems := ready.problems(task, solver):
        found.problems += problems
        return list(dict.fromkeys(spots))
    oracle = await _records(ready, task, solver, repeat)
    spots += [*_of_any(oracle, found), *_of_oracle(oracle), *_of_repeats(oracle, "the solution")]
    forks = Feature.FORK in ready.seat.provider.features
    if forks and not subject.separate and not subject.value("steps"):
        apart = replace(ready, seat=replace(ready.seat, verifier="forked"))
        spots += _of_modes(oracle, (await _records(apart, task, solver, 1))[0])
    return list(dict.fromkeys(spots))


async def _records(ready: Controls, task: Task, harness: Harness, samples: int) -> list[Record]:
    """The records of some rollouts of the task."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def play() -> Record:
        async with room:
            trace = await ready.play(task, harness)
        record: Record = redact(trace.to_record(), task.secrets)
        return record

    async with asyncio.TaskGroup() as group:
        playing = [group.create_task(play()) for _ in range(samples)]
    return [one.result() for one in playing]


def _placed(spot: Spot, subject: Subject) -> Spot:
    """The spot, in the task as a whole where there is no such file, as in a task of several steps."""
    return spot if spot.path in subject.files else replace(spot, path="")


def _of_any(records: Sequence[Record], found: Soundness) -> Iterator[tuple[str, Spot]]:
    """What the end of a rollout says, whoever played."""
    for record in records:
        code, reason = record["verifier"].get("code"), one_line(str(record["reason"] or ""))
        status, error = record["status"], record["error"] or {}
        if status == Status.INFRASTRUCTURE_ERROR and error.get("type") == "image":
            said, _, output = str(error["message"]).partition("\n")
            yield "image-build-failed", Spot(AGENT_IMAGE, one_line(said), output=shown_end(output))
        elif status == Status.INFRASTRUCTURE_ERROR:
            found.problems.append(f"{record['task']} could not be played: {reason}")
        elif code == "verifier_timeout":
            yield "verifier-timed-out", Spot(_TESTS, reason)
        elif status == Status.INDETERMINATE:
            yield "no-reward-left", Spot(_TESTS, reason, output=_output(record))
        elif any(one["type"] == JudgeError.kind for one in record["errors"]):
            found.problems.append(f"{record['task']} could not be graded: {reason}")
        elif status == Status.SCORING_ERROR:
            yield "invalid-reward-left", Spot(_TESTS, reason)
        elif status != Status.SCORED:
            found.problems.append(f"{record['task']} could not be graded: {reason}")


def _of_idle(records: Sequence[Record]) -> Iterator[tuple[str, Spot]]:
    for record in records:
        if record["status"] == Status.SCORED and is_full(record["reward"]):
            yield "nop-earns-one", Spot(_TESTS, "an agent that does nothing earns the full reward")
        peeked = record["info"].get(FOUND, {})
        for path, hidden in peeked.get("found", ()):
            yield "hidden-files-visible", Spot(hidden, f"lies in the agent's sandbox as {one_line(path)}")
        if peeked and not peeked["searched"]:
            yield "hidden-files-not-searched", Spot(AGENT_IMAGE, "find and sha256sum could not be run in the image")


def _of_oracle(records: Sequence[Record]) -> Iterator[tuple[str, Spot]]:
    for record in records:
        if record["timeout"] and record["stop"] == "agent_timeout":
            yield "solution-timed-out", Spot(_SOLUTION, "the solution ran into the agent's deadline")
        if record["status"] == Status.SCORED and not is_full(record["reward"]):
            earned = "no primary reward" if record["reward"] is None else f"{record['reward']:g}"
            yield "oracle-below-one", Spot(_SOLUTION, f"the solution earns {earned}", output=_output(record))


def _of_repeats(records: Sequence[Record], who: str) -> Iterator[tuple[str, Spot]]:
    outcomes = {_outcome(record) for record in records if record["status"] != Status.INFRASTRUCTURE_ERROR}
    if len(outcomes) > 1:
        yield (
            "flaky-verifier",
            Spot(_TESTS, f"{who} was graded differently in equal sandboxes: {', '.join(sorted(outcomes))}"),
        )


def _of_modes(oracle: Sequence[Record], alone: Record) -> Iterator[tuple[str, Spot]]:
    if len(same := {_outcome(record) for record in oracle}) == 1 and _outcome(alone) not in same:
        yield (
            "verdict-depends-on-mode",
            Spot(
                _TESTS,
                f"the solution's outcome is {same.pop()} in the agent's sandbox and {_outcome(alone)} in a fork of it",
            ),
        )


def _outcome(record: Record) -> str:
    return f"{record['reward']:g}" if record["reward"] is not None else str(record["status"])


def _output(record: Record) -> str:
    return "\n".join(what_was_printed(record))
