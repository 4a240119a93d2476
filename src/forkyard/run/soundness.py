"""Is a task directory sound when it is played? By its solution and by an agent that does nothing, some times each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from forkyard.env import AgentConfig
from forkyard.env.config import HarnessChoice, RuntimeChoice
from forkyard.errors import ConfigError
from forkyard.run.peeking import FOUND, PeekingHarness
from forkyard.run.plan import Plan
from forkyard.run.progress import Progress
from forkyard.run.run import start
from forkyard.task.check import RULES, Finding, Spot
from forkyard.task.check.subject import AGENT_IMAGE, Subject
from forkyard.trace import Status, is_full
from forkyard.trace.store import TRACES_FILE, read_traces
from forkyard.values import one_line, tail

Record = Mapping[str, Any]
_PEEK = f"{PeekingHarness.__module__}:{PeekingHarness.__qualname__}"
_TESTS, _SOLUTION = "tests/test.sh", "solution/solve.sh"
_SAID = 200  # characters of an output that go into a message


@dataclass(slots=True)
class Soundness:
    """What playing a task showed; `problems` say why it could not be seen, `signal` that somebody interrupted."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where a task is played, and how often."""

    provider: str = "local"
    base: str | None = None
    repeat: int = 3


async def play_task(root: Path, conditions: Conditions) -> Soundness:
    """Play the task at `root` and say what that shows. What cannot be played is told, not raised."""
    found = Soundness()
    subject = Subject(root)
    spots: list[tuple[str, Spot]] = []
    with TemporaryDirectory(prefix="forkyard-check-") as place:
        idle = await _records(root, _PEEK, conditions, Path(place), found)
        oracle = (
            await _records(root, "oracle", conditions, Path(place), found) if _goes_on(idle, found, subject) else []
        )
        alone = None
        if oracle and not found.signal and not subject.separate and not subject.value("steps"):
            alone = await _forked(root, conditions, Path(place), found)
    spots += _of_any([*idle, *oracle], found)
    spots += _of_idle(idle)
    spots += _of_oracle(oracle)
    spots += [*_of_repeats(idle, "doing nothing"), *_of_repeats(oracle, "the solution")]
    spots += _of_modes(oracle, alone)
    found.findings = [RULES[name].finding(str(root), _placed(spot, subject)) for name, spot in dict.fromkeys(spots)]
    return found


def _placed(spot: Spot, subject: Subject) -> Spot:
    """The spot, in the task as a whole where there is no such file, as in a task of several steps."""
    return spot if spot.path in subject.files else replace(spot, path="")


def _goes_on(idle: Sequence[Record], found: Soundness, subject: Subject) -> bool:
    """Whether there is a solution, and a reason to believe that it can be played."""
    stuck = found.problems or found.signal or not idle
    return (
        not stuck
        and bool(subject.reference)
        and any(record["status"] != Status.INFRASTRUCTURE_ERROR for record in idle)
    )


async def _records(
    root: Path,
    harness: str,
    conditions: Conditions,
    place: Path,
    found: Soundness,
    verifier: Literal["forked"] | None = None,
) -> list[Record]:
    """The records of one run of the task."""
    plan = Plan(
        run=f"{'oracle' if harness == 'oracle' else 'nop'}-{verifier or 'own'}",
        out=place,
        paths=(root,),
        agent=AgentConfig(
            harness=HarnessChoice(id=harness), runtime=RuntimeChoice(type=conditions.provider), verifier=verifier
        ),
        samples=1 if verifier else conditions.repeat,
        base=conditions.base,
        unbounded=True,
        retries=0,
    )
    try:
        outcome = await start(plan, Progress())
    except ConfigError as err:
        found.problems += err.problems
        return []
    found.signal = found.signal or outcome.signal
    path = plan.place / TRACES_FILE
    return [dict(record) for record in read_traces(path)] if path.exists() else []


async def _forked(root: Path, conditions: Conditions, place: Path, found: Soundness) -> Record | None:
    """How the solution fares in mode `forked`; None where the provider has no forks."""
    apart = Soundness()
    records = await _records(root, "oracle", conditions, place, apart, "forked")
    found.signal = found.signal or apart.signal
    return records[0] if records else None


def _of_any(records: Sequence[Record], found: Soundness) -> Iterator[tuple[str, Spot]]:
    """What the end of a rollout says, whoever played."""
    for record in records:
        code, reason = record["verifier"].get("code"), one_line(str(record["reason"] or ""))
        status, error = record["status"], record["error"] or {}
        if status == Status.INFRASTRUCTURE_ERROR and error.get("type") == "image":
            yield "image-build-failed", Spot(AGENT_IMAGE, one_line(tail(str(error["message"]), 1000)))
        elif status == Status.INFRASTRUCTURE_ERROR:
            found.problems.append(f"{record['task']} could not be played: {reason}")
        elif code == "verifier_timeout":
            yield "verifier-timed-out", Spot(_TESTS, reason)
        elif status == Status.INDETERMINATE:
            yield "no-reward-left", Spot(_TESTS, f"{reason}{_output(record)}")
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
            ended = record["info"].get("oracle", {}).get("exit_code")
            earned = "no primary reward" if record["reward"] is None else f"{record['reward']:g}"
            said = f" (solve.sh ended with {ended})" if ended else ""
            yield "oracle-below-one", Spot(_SOLUTION, f"the solution earns {earned}{said}{_output(record)}")


def _of_repeats(records: Sequence[Record], who: str) -> Iterator[tuple[str, Spot]]:
    outcomes = {_outcome(record) for record in records if record["status"] != Status.INFRASTRUCTURE_ERROR}
    if len(outcomes) > 1:
        yield (
            "flaky-verifier",
            Spot(_TESTS, f"{who} was graded differently in equal sandboxes: {', '.join(sorted(outcomes))}"),
        )


def _of_modes(oracle: Sequence[Record], alone: Record | None) -> Iterator[tuple[str, Spot]]:
    if alone is not None and len(same := {_outcome(record) for record in oracle}) == 1 and _outcome(alone) not in same:
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
    said = one_line(tail(str(record["verifier"].get("output_tail") or "").strip(), _SAID))
    return f"; the tests said: {said}" if said else ""
