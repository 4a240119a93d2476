"""What a run tells while it goes on: nothing, lines, or a live view (see `live`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from forkyard.trace import SINGLE_AGENT, Status, Trace, is_full
from forkyard.trace.costs import attempts
from forkyard.trace.record import is_trainable
from forkyard.values import counted, decimal, one_line, printable, shown_end

REASON_SHOWN = 150  # characters of its beginning, and of its end, where the cause often stands


@dataclass(frozen=True, slots=True)
class Headline:
    """What is known when a run starts: `recorded` of its `planned` episodes are on record from before."""

    run: str
    harness: str
    model: str | None
    planned: int
    recorded: int


class Progress:
    """Told what happens, in order; never raises. By itself it keeps silent: subclass it and say what matters."""

    def begin(self, headline: Headline) -> None:
        """The first rollout is about to start."""

    def note(self, text: str) -> None:
        """Something a user should know."""

    def phase(self, trace: Trace, phase: str) -> None:
        """A rollout enters a phase (see `forkyard.env.OnPhase`)."""

    def finished(self, record: Mapping[str, Any]) -> None:
        """A line was written."""

    def end(self, played: int, seconds: float, traces: Path) -> None:
        """The last rollout has ended."""

    def abandon(self) -> None:
        """Leave the terminal as it was. Said before `end`, and when no `end` will come."""


class Outcomes:
    """The lines of finished rollouts. Those of an episode come together; all but the first of an agent are numbered.

    Below one that a command explains stands the end of what that printed, once for all that printed the same.
    """

    def __init__(self) -> None:
        self._episode: Any = None
        self._printed: set[str] = set()
        self._seen: Counter[str] = Counter()

    def line(self, record: Mapping[str, Any]) -> str:
        """The line of the next one."""
        if record["episode"] is None or record["episode"] != self._episode:
            self._episode = record["episode"]
            self._seen.clear()
        self._seen[record["agent"]] += 1
        said = outcome_line(record, self._seen[record["agent"]])
        printed = [block for block in explained(record) if block not in self._printed]
        self._printed.update(printed)
        return "\n".join([said, *printed])


class Lines(Progress):
    """One plain line for each finished rollout. A reader that has gone away ends the lines, not the run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._outcomes = Outcomes()

    def note(self, text: str) -> None:
        """A line."""
        self._write(f"note: {printable(text)}")

    def finished(self, record: Mapping[str, Any]) -> None:
        """A line."""
        self._write(self._outcomes.line(record))

    def end(self, played: int, seconds: float, traces: Path) -> None:
        """The last line."""
        self._write(end_line(played, seconds, traces))

    def _write(self, text: str) -> None:
        with suppress(BrokenPipeError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


def player(task: str, sample: int, env: str, agent: str, number: int = 1) -> str:
    """`sales-report #1`, with the agent's name when there may be several, and its number from its second rollout on."""
    if env == SINGLE_AGENT:
        return f"{one_line(task)} #{sample}"
    return f"{one_line(task)} #{sample} {one_line(agent)}" + (f" {number}" if number > 1 else "")


def beside(record: Mapping[str, Any]) -> bool:
    """Whether a rollout is a judge's or a simulated user's: it ended well, and nothing of it is rewarded."""
    rewarded_or_failed = record["rewards"] or record["errors"] or record["status"] != Status.SCORED
    return not is_trainable(record) and not rewarded_or_failed


def outcome_line(record: Mapping[str, Any], number: int = 1) -> str:
    """`sales-report #1: reward 1.00 (2/2) in 4 steps`, or the status and the beginning of the reason.

    Followed by how many attempts there were, for the time they took: not those of another run, whose agent's part it
    grades again.
    """
    tries = 1 if "regraded_from" in (record["info"] or {}) else attempts(record)
    return _told(record, number) + (f" (the last of {tries} attempts)" if tries > 1 else "")


def _told(record: Mapping[str, Any], number: int) -> str:
    who = player(record["task"], record["sample"], record["env"], record["agent"], number)
    if beside(record):
        return f"{who}: done in {counted(record['steps'], 'step')}"
    if record["status"] != Status.SCORED:
        reason = one_line((record["reason"] or "no reason was given").partition("\n")[0])
        cut = reason if len(reason) <= 2 * REASON_SHOWN else f"{reason[:REASON_SHOWN]} ... {reason[-REASON_SHOWN:]}"
        return f"{who}: {record['status']}: {cut}"
    checks = "" if record["total"] is None or record["passed"] is None else f" ({record['passed']}/{record['total']})"
    reward = "no primary reward" if record["reward"] is None else f"reward {decimal(record['reward'])}"
    stop = "" if record["stop"] in (None, "agent_completed") else f" ({one_line(record['stop'])})"
    return f"{who}: {reward}{checks} in {counted(record['steps'], 'step')}{stop}"


def explained(record: Mapping[str, Any]) -> Iterator[str]:
    """Why it is not scored, as far as commands said so, and why a solution solved nothing; a block for each command."""
    if record["status"] != Status.SCORED:
        output = (record["reason"] or "").partition("\n")[2]
        if output.strip():
            yield shown_end(output)
        yield from what_was_printed(record)
    elif "oracle" in (record["info"] or {}) and not is_full(record["reward"]):
        yield from what_was_printed(record)


def what_was_printed(record: Mapping[str, Any]) -> Iterator[str]:
    """How the solution ended that failed, and the end of what it and the tests printed; a block for each."""
    solution, verifier = (record["info"] or {}).get("oracle") or {}, record["verifier"] or {}
    if solution and (code := solution.get("exit_code")) != 0:
        how = "did not end" if code is None else f"ended with exit code {code}"
        yield _block(f"solve.sh {how}", str(solution.get("output") or ""))
    if (output := str(verifier.get("output_tail") or "")).strip():
        code = verifier.get("exit_code")
        yield _block("the tests did not end" if code is None else f"the tests ended with exit code {code}", output)


def _block(how: str, output: str) -> str:
    shown = shown_end(output)
    return f"  {how}; the end of the output:\n{shown}" if shown else f"  {how} and printed nothing"


def end_line(played: int, seconds: float, traces: Path) -> str:
    """`6 rollouts in 151s -> runs/NAME/traces.jsonl`."""
    return f"{counted(played, 'rollout')} in {round(seconds)}s -> {one_line(str(traces))}"
