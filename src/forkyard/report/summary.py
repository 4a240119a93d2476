"""From files of lines to a report: for what may be averaged a row a task, an overall row, intervals and notes.

Unscored rollouts are left out of the rates and counted beside them; where that matters, the other reading, in which
every rollout without a reward is a failure, is given too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forkyard.report.alike import Alike, alike, differences
from forkyard.report.files import files_of, records_of, torn_notes
from forkyard.report.outcome import Meter, Outcome, Totals, outcome
from forkyard.report.passk import pass_at_ks
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
from forkyard.trace import Status, is_full
from forkyard.trace.store import Record, latest
from forkyard.values import counted, first_names


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
    digest: str | None = None  # of the task's content
    mode: str | None = None  # where it was graded


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one agent of one env, by one harness with one model, that are alike (see `alike`).

    `setting` is what their runs set apart from harness and model, `modes` where they were graded. `strict` is the
    overall row when every rollout without a reward counts as a failure, None when that is no other, and `failed` are
    the rows under it. `rewarded` is
    false for an agent that rewards are not for, a judge or a simulated user beside the one that earns them.
    `pass_at_k` counts every rollout (see `passk`); it is empty while a run is unfinished.
    `cost_usd` is what its rollouts cost, `judges_usd` the part of that which went to models that graded them.
    `metrics` and `rewards` are means by name, over the scored rollouts that have a number there.
    """

    env: str
    agent: str
    rewarded: bool
    harness: str | None
    model: str | None
    setting: str
    modes: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[Row, ...]
    overall: Row
    strict: Row | None
    pass_at_k: Mapping[int, float]
    intervals: Mapping[str, Interval]
    statuses: Mapping[str, int]
    cost_usd: float | None
    judges_usd: float
    notes: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[Row, ...] = ()


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


def report(
    paths: Sequence[Path], *, by_run: bool = False, counts: Callable[[Record], bool] = lambda record: True
) -> Report:
    """Report on runs, given as directories or files of lines; samples of several runs add up where they are alike.

    With `by_run` they do not: each run has tables of its own. Lines that `counts` says no to are passed over.

    Raises ConfigError for a path that is no run and for a line that is no record.
    """
    files = files_of(paths)
    planned = planned_runs(files)
    meter = Meter()
    outcomes, replaced = latest(filter(counts, _records(files, planned, meter)), outcome)
    earning = {(item.run, item.env) for item in outcomes if item.rewarded}
    sets = alike(outcomes, {run.name: run.setting for run in planned.values()}, by_run=by_run)
    notes = [*_file_notes(files, replaced, bool(outcomes)), *(note for run in planned.values() for note in run.notes)]
    if apart := differences(sets):
        notes.append(apart)
    unfinished = {run.name for run in planned.values() if run.recorded < run.planned}
    groups = (summarize(one.outcomes, one.setting, _rewarded(one, earning)) for one in sets)
    return Report(
        files=tuple(files),
        runs=tuple(planned.values()),
        groups=tuple(group if unfinished.isdisjoint(group.runs) else replace(group, pass_at_k={}) for group in groups),
        totals=meter.totals(),
        notes=tuple(notes),
    )


def _rewarded(one: Alike, earning: Container[tuple[str, str]]) -> bool:
    """Whether rewards are for an agent: it has some, or nobody else in its runs has."""
    return any(item.rewarded or (item.run, item.env) not in earning for item in one.outcomes)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns that can have a value; one sample of each task has no pass@2."""
    return [name for name in COLUMNS if name != "pass@2" or any(row.rollouts > 1 for row in rows)]


def summarize(outcomes: Sequence[Outcome], setting: str = "", rewarded: bool = True) -> Group:
    """The group of some outcomes, at least one, all alike."""
    tasks: dict[str, list[Outcome]] = {}
    for item in outcomes:
        tasks.setdefault(item.task, []).append(item)
    rows = tuple(_row(task, tasks[task]) for task in sorted(tasks))
    failed = tuple(_row(task, [_as_failure(item) for item in tasks[task]]) for task in sorted(tasks))
    missing = rewarded and any(not item.scored or item.reward is None for item in outcomes)
    costs = [item.cost for item in outcomes if item.cost is not None]
    group = Group(
        env=outcomes[0].env,
        agent=outcomes[0].agent,
        rewarded=rewarded,
        harness=outcomes[0].harness,
        model=outcomes[0].model,
        setting=setting,
        modes=tuple(sorted({item.mode for item in outcomes if item.mode})),
        runs=tuple(dict.fromkeys(item.run for item in outcomes)),
        rows=rows,
        overall=_overall(rows),
        strict=_overall(failed) if missing else None,
        pass_at_k=pass_at_ks(tasks.values()) if rewarded else {},
        intervals=_intervals(rows, outcomes),
        statuses=dict(Counter(item.status for item in outcomes).most_common()),
        cost_usd=math.fsum(costs) if costs else None,
        judges_usd=math.fsum(item.judges for item in outcomes),
        notes=(),
        metrics=_means(item.metrics for item in outcomes if item.scored),
        rewards=_means(item.rewards for item in outcomes if item.scored),
        failed=failed,
    )
    return replace(group, notes=tuple(_group_notes(group, outcomes)) if rewarded else ())


def _means(tables: Iterable[tuple[tuple[str, float], ...]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table:
            found.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _row(task: str, outcomes: Sequence[Outcome]) -> Row:
    scored = sum(item.scored for item in outcomes)
    rewards = [item.reward for item in outcomes if item.scored and item.reward is not None]
    solved = sum(is_full(reward) for reward in rewards)
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
        errors=sum(not item.scored or item.env_failed for item in outcomes),
        digest=next((item.digest for item in outcomes if item.digest), None),
        mode=next((item.mode for item in outcomes if item.mode), None),
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
    if len(group.runs) > 1:
        runs = f"{counted(len(group.runs), 'run')}, {first_names(group.runs)}"
        yield f"samples of {runs} are added up: --by-run keeps them apart, forkyard compare tells the difference of two"
    unscored = {status: count for status, count in group.statuses.items() if status != Status.SCORED}
    if unscored:
        kinds = ", ".join(f"{status} {count}" for status, count in unscored.items())
        yield f"{sum(unscored.values())} of {counted(group.overall.rollouts, 'rollout')} not scored: {kinds}"
    failed = sum(item.scored and item.env_failed for item in outcomes)
    if failed:
        yield f"{counted(failed, 'scored rollout')} of episodes whose env failed: among the errors, their rewards count"
    most = max((item.reward for item in outcomes if item.scored and item.reward is not None), default=0.0)
    if is_full(most) and round(most, 9) > 1:
        yield f"rewards reach {most:.4g}: solved means a reward of at least 1"
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


def _records(files: Iterable[Path], planned: Mapping[Path, PlannedRun], meter: Meter) -> Iterator[Record]:
    for file in files:
        for record in records_of(file, planned.get(file)):
            meter.add(record)
            yield record


def _file_notes(files: Sequence[Path], replaced: int, any_rollouts: bool) -> Iterator[str]:
    if not any_rollouts:
        yield "no rollouts yet"
    if replaced:
        yield f"{counted(replaced, 'line')} replaced by a later line of the same run, task and sample"
    yield from torn_notes(files)
