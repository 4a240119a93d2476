"""What `run`, `resume` and `eval` have in common: how a run is told of, and how it ends."""

from __future__ import annotations

import sys

from rich.console import Console

import forkyard.report as reports
import forkyard.run as runs
from forkyard.cli.output import complain, say
from forkyard.run import Outcome, Progress
from forkyard.values import counted

ERRORED, BELOW = 2, 3


def progress_for(quiet: bool, json: bool, plain: bool = False) -> Progress:
    """What tells how a run goes: nothing, a live view on a terminal, or lines."""
    stream = sys.stderr if json else sys.stdout
    if quiet:
        return Progress()
    if stream.isatty() and not plain:
        return runs.Live(Console(file=stream, highlight=False))
    return runs.Lines(stream)


def ended(outcome: Outcome, quiet: bool, json: bool, fail_under: float | None) -> int:
    """Say how it ended; the exit code."""
    if outcome.signal is not None:
        complain(f"interrupted{_left(outcome)}")
        return 128 + outcome.signal
    if outcome.directory is None:
        return 0
    if outcome.stopped is not None:
        complain(f"stopped early, because every other rollout would fail as well: {outcome.stopped}{_left(outcome)}")
    elif not outcome.played and not quiet and not json:
        say(f"nothing to do: all {outcome.planned} {outcome.unit}s of {outcome.directory} are done")
    found = reports.report([outcome.directory])
    if json:
        say(reports.to_json(found))
    elif not quiet:
        say(reports.to_text(found))
    if outcome.stopped is not None or outcome.errored:
        return ERRORED
    if not any(group.overall.scored for group in _rewarded(found)):
        complain(f"nothing was scored ({counted(outcome.planned, outcome.unit)}); the reasons are in {found.files[0]}")
        return ERRORED
    return BELOW if fail_under is not None and _below(found, fail_under) else 0


def _rewarded(found: reports.Report) -> list[reports.Group]:
    """The groups of agents that earn rewards; judges and users beside them do not count."""
    return [group for group in found.groups if group.rewarded]


def _left(outcome: Outcome) -> str:
    """How much is on record and how to play the rest."""
    if outcome.directory is None:
        return " before anything started"
    left = outcome.planned - outcome.recorded
    spent = "USD for the run" in (outcome.stopped or "")
    command = outcome.resume_command + (" --budget-usd USD" if spent else "")
    if left:
        recorded = f"{outcome.recorded} of {outcome.planned} {outcome.unit}s are on record, {left} are not"
        return f"; {recorded}. Play the rest with: {command}"
    again = f". Play again what failed with: {command}" if spent or outcome.errored else ""
    return f"; all {outcome.planned} {outcome.unit}s are on record{again}"


def _below(found: reports.Report, threshold: float) -> bool:
    rows = [group.strict or group.overall for group in _rewarded(found)]  # what earned no reward earned 0 here
    means = [row.mean_reward for row in rows]
    below = not means or any(mean is None or mean < threshold for mean in means)
    if below:
        shown = ", ".join(reports.shown(mean) for mean in means) or "nothing was scored"
        complain(f"the mean reward is below --fail-under {threshold:g}: {shown}")
    return below
