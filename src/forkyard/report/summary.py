"""From files of lines to a report: for what may be averaged a row a task, an overall row, intervals and notes.

Unscored rollouts are left out of the rates and counted beside them; where that matters, the other reading, in which
every rollout without a reward is a failure, is given too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.report.alike import alike, differences
from forkyard.report.outcome import Meter, Outcome, Totals, outcome
from forkyard.report.planned import PlannedRun, planned_runs
from forkyard.report.stats import (
    Interval,
    best_of_k,
    bootstrap_interval,
    mean,
    pass_at_k,
    pass_hat_k,
    success_interval,
    t_interval,
)
from forkyard.trace import Status
from forkyard.trace.store import TRACES_FILE, Record, latest, read_traces, torn_tail
from forkyard.values import counted, first_names

SOLVED = 1 - 1e-9  # a sum of weighted rewards may miss 1 by rounding


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a task, or of all; None where it is undefined (too few scored rollouts)."""

    task: str
    rollouts: int
    scored: int
    solved: int
    pass_at_1: float | None
    pass_at_2: float | None
    pass_hat_2: float | None
    best_of_2: float | None
    mean_reward: float | None
    errors: int


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one harness with one model that are alike (see `alike`).

    `setting` is what their runs set apart from harness and model, `modes` where they were graded. `strict` is the
    overall row when every rollout without a reward counts as a failure; None when that is no other.
    """

    harness: str | None
    model: str | None
    setting: str
    modes: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[Row, ...]
    overall: Row
    strict: Row | None
    intervals: Mapping[str, Interval]
    statuses: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `report` says of some files."""

    files: tuple[Path, ...]
    runs: tuple[PlannedRun, ...]
    groups: tuple[Group, ...]
    totals: Totals
    notes: tuple[str, ...]


COLUMNS: dict[str, Callable[[Row], Any]] = {
    "rollouts": lambda row: row.rollouts,
    "scored": lambda row: row.scored,
    "solved": lambda row: row.solved,
    "pass@1": lambda row: row.pass_at_1,
    "pass@2": lambda row: row.pass_at_2,
    "mean_reward": lambda row: row.mean_reward,
    "errors": lambda row: row.errors,
}
NEEDED = {"pass@1": "a scored rollout", "pass@2": "2 scored rollouts", "mean_reward": "a reward"}


def report(paths: Sequence[Path]) -> Report:
    """Report on runs, given as directories or files of lines; samples of several runs add up where they are alike.

    Raises ConfigError for a path that is no run and for a line that is no record.
    """
    files = _files(paths)
    planned = planned_runs(files)
    meter = Meter()
    outcomes, replaced = latest(_records(files, planned, meter), outcome)
    sets = alike(outcomes, {run.name: run.setting for run in planned.values()})
    notes = [*_file_notes(files, replaced, bool(outcomes)), *(note for run in planned.values() for note in run.notes)]
    if apart := differences(sets):
        notes.append(apart)
    return Report(
        files=tuple(files),
        runs=tuple(planned.values()),
        groups=tuple(summarize(one.outcomes, one.setting) for one in sets),
        totals=meter.totals(),
        notes=tuple(notes),
    )


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns that can have a value; one sample of each task has no pass@2."""
    return [name for name in COLUMNS if name != "pass@2" or any(row.rollouts > 1 for row in rows)]


def summarize(outcomes: Sequence[Outcome], setting: str = "") -> Group:
    """The group of some outcomes, at least one, all alike."""
    tasks: dict[str, list[Outcome]] = {}
    for item in outcomes:
        tasks.setdefault(item.task, []).append(item)
    rows = tuple(_row(task, tasks[task]) for task in sorted(tasks))
    failed = tuple(_row(task, [_as_failure(item) for item in tasks[task]]) for task in sorted(tasks))
    missing = any(not item.scored or item.reward is None for item in outcomes)
    group = Group(
        harness=outcomes[0].harness,
        model=outcomes[0].model,
        setting=setting,
        modes=tuple(sorted({item.mode for item in outcomes if item.mode})),
        runs=tuple(dict.fromkeys(item.run for item in outcomes)),
        rows=rows,
        overall=_overall(rows),
        strict=_overall(failed) if missing else None,
        intervals=_intervals(rows, outcomes),
        statuses=dict(Counter(item.status for item in outcomes).most_common()),
        notes=(),
    )
    return replace(group, notes=tuple(_group_notes(group, outcomes)))


def _row(task: str, outcomes: Sequence[Outcome]) -> Row:
    scored = sum(item.scored for item in outcomes)
    rewards = [item.reward for item in outcomes if item.scored and item.reward is not None]
    solved = sum(reward >= SOLVED for reward in rewards)
    return Row(
        task=task,
        rollouts=len(outcomes),
        scored=scored,
        solved=solved,
        pass_at_1=pass_at_k(scored, solved, 1),
        pass_at_2=pass_at_k(scored, solved, 2),
        pass_hat_2=pass_hat_k(scored, solved, 2),
        best_of_2=best_of_k(rewards, 2),
        mean_reward=mean(rewards),
        errors=len(outcomes) - scored,
    )


def _as_failure(item: Outcome) -> Outcome:
    return item if item.scored and item.reward is not None else item._replace(status=Status.SCORED.value, reward=0.0)


def _overall(rows: Sequence[Row]) -> Row:
    def averaged(value: Callable[[Row], float | None]) -> float | None:
        return mean(_defined(rows, value))

    return Row(
        task="overall",
        rollouts=sum(row.rollouts for row in rows),
        scored=sum(row.scored for row in rows),
        solved=sum(row.solved for row in rows),
        pass_at_1=averaged(lambda row: row.pass_at_1),
        pass_at_2=averaged(lambda row: row.pass_at_2),
        pass_hat_2=averaged(lambda row: row.pass_hat_2),
        best_of_2=averaged(lambda row: row.best_of_2),
        mean_reward=averaged(lambda row: row.mean_reward),
        errors=sum(row.errors for row in rows),
    )


def _defined(rows: Sequence[Row], value: Callable[[Row], float | None]) -> list[float]:
    return [known for row in rows if (known := value(row)) is not None]


def _intervals(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> dict[str, Interval]:
    reward = t_interval(_defined(rows, COLUMNS["mean_reward"]))
    if reward and all(0 <= (item.reward or 0) <= 1 for item in outcomes):
        reward = Interval(max(0.0, reward.low), min(1.0, reward.high), reward.method)
    found = {
        "pass@1": success_interval([(row.scored, row.solved) for row in rows]),
        "pass@2": bootstrap_interval(_defined(rows, COLUMNS["pass@2"])),
        "mean_reward": reward,
    }
    return {name: interval for name, interval in found.items() if interval}


def _group_notes(group: Group, outcomes: Sequence[Outcome]) -> Iterator[str]:
    unscored = {status: count for status, count in group.statuses.items() if status != Status.SCORED}
    if unscored:
        kinds = ", ".join(f"{status} {count}" for status, count in unscored.items())
        yield f"{group.overall.errors} of {counted(group.overall.rollouts, 'rollout')} not scored: {kinds}"
    bare = sum(item.scored and item.reward is None and not item.odd for item in outcomes)
    if bare:
        yield f"{counted(bare, 'scored rollout')} without a primary reward: not solved, and left out of mean_reward"
    odd = sum(item.scored and item.odd for item in outcomes)
    if odd:
        yield f"{counted(odd, 'scored rollout')} with a damaged reward: not solved, and left out of mean_reward"
    if not group.overall.scored:
        yield "nothing was scored, so there are no rates"
        return
    for name in columns_of(group.rows):
        lacking = [row.task for row in group.rows if COLUMNS[name](row) is None]
        if lacking:
            whose = first_names(lacking)
            yield f"{name} needs {NEEDED[name]}: undefined (-) and left out of the overall row for {whose}"


def _files(paths: Iterable[Path]) -> list[Path]:
    files: dict[Path, Path] = {}
    problems: list[str] = []
    for path in paths:
        file = path / TRACES_FILE if path.is_dir() else path
        if file.is_file():
            files.setdefault(file.resolve(), file)
        elif path.is_dir():
            runs = any(path.glob(f"*/{TRACES_FILE}"))
            mend = f"name those in it, as {path}/*" if runs else f"it holds no {TRACES_FILE}"
            problems.append(f"{path} is no run: {mend}")
        else:
            default = Path("runs") / path
            mean = f"did you mean {default}? " if (default / TRACES_FILE).is_file() else ""
            problems.append(f"{path} does not exist: {mean}name a run's directory or a file of lines")
    if problems or not files:
        raise ConfigError(*(problems or ["nothing to report on: name a run's directory or a file of lines"]))
    return list(files.values())


def _records(files: Iterable[Path], planned: Mapping[Path, PlannedRun], meter: Meter) -> Iterator[Record]:
    for file in files:
        run = planned.get(file)
        for record in read_traces(file):
            meter.add(record)
            if run is not None and record.get("run") == run.run:
                run.add(record)
                record["run"] = run.name
            elif not record.get("run"):
                record["run"] = str(file)  # lines that name no run are told apart by their file
            yield record


def _file_notes(files: Sequence[Path], replaced: int, any_rollouts: bool) -> Iterator[str]:
    if not any_rollouts:
        yield "no rollouts yet"
    if replaced:
        yield f"{counted(replaced, 'line')} replaced by a later line of the same run, task and sample"
    for file in files:
        torn = torn_tail(file)
        if torn:
            yield f"{file} ends in an unfinished line of {torn} bytes, not counted: its run is at work or was killed"
