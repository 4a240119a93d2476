"""Two runs side by side: task by task what each came to, and the difference with the interval that pairing gives it.

The task is the unit here as everywhere: of each task that both runs played, the difference of the means over its
samples is one value, so that samples of a task, which are correlated, never count as independent ones, and how hard a
task is does not blur the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.report.same import Same, same_rollouts
from forkyard.report.stats import Difference, paired_difference, sign_test
from forkyard.report.summary import Group, Report, Row, report
from forkyard.values import counted, first_names, one_line


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: as it was named, and its rollouts that rewards are for."""

    place: Path
    group: Group


@dataclass(frozen=True, slots=True)
class Pair:
    """A task that both played, in its one version; `strict` are the rows in which every failure to score is a 0."""

    task: str
    a: Row
    b: Row
    strict: tuple[Row, Row]

    @property
    def difference(self) -> float | None:
        """Of the mean rewards, B - A; None when one of them has none."""
        return _minus(self.a.mean_reward, self.b.mean_reward)


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A. Each difference is over the pairs in which both have a value, `strict` over all of them.

    `strict` is None when every rollout has a reward. `solved_by_a` are tasks that A solved at least once, and B,
    which was scored there, never. `same` tells of runs of the same rollouts.
    """

    a: Side
    b: Side
    pairs: tuple[Pair, ...]
    reward: Difference | None
    pass_at_1: Difference | None
    strict: Difference | None
    solved_by_a: tuple[str, ...]
    solved_by_b: tuple[str, ...]
    notes: tuple[str, ...]
    same: Same | None = None

    @property
    def better(self) -> int:
        """In how many tasks B earned more."""
        return sum((pair.difference or 0) > 0 for pair in self.pairs)

    @property
    def worse(self) -> int:
        """In how many tasks B earned less."""
        return sum((pair.difference or 0) < 0 for pair in self.pairs)

    @property
    def sign_p(self) -> float | None:
        """Of the sign test of those two counts; None when no task differs."""
        return sign_test(self.better, self.worse)


def compare(a: Path, b: Path) -> Comparison:
    """Compare two runs, given as directories or files of lines, by the tasks that both played.

    Of runs of the same rollouts, graded again, each rollout is held against itself (see `same`).

    Raises ConfigError as `report` does, for a run in which several agents earn rewards, and when no task is common.
    """
    if a.resolve() == b.resolve():
        raise ConfigError(f"{a} and {b} are the same run: name two")
    same = same_rollouts(a, b)
    reports = (report([a], counts=same.holds), report([b], counts=same.holds)) if same else (report([a]), report([b]))
    sides = _side(a, reports[0]), _side(b, reports[1])
    groups = sides[0].group, sides[1].group
    rows, others = ({row.task: row for row in group.rows} for group in groups)
    strict, other_strict = ({row.task: row for row in group.failed} for group in groups)
    common = [task for task in rows if task in others]
    changed = [task for task in common if _changed(rows[task], others[task])]
    pairs = tuple(
        Pair(task, rows[task], others[task], (strict[task], other_strict[task]))
        for task in common
        if same or task not in changed
    )
    if not pairs:
        why = "the tasks they have in common have changed" if common else "they have no task in common"
        raise ConfigError(f"{a} and {b} cannot be compared: {why}")
    return Comparison(
        *sides,
        pairs,
        reward=_paired((pair.a.mean_reward, pair.b.mean_reward) for pair in pairs),
        pass_at_1=_paired((pair.a.pass_at_1, pair.b.pass_at_1) for pair in pairs),
        strict=_paired(((one.mean_reward, other.mean_reward) for one, other in (pair.strict for pair in pairs)))
        if groups[0].strict or groups[1].strict
        else None,
        solved_by_a=tuple(pair.task for pair in pairs if pair.b.scored and pair.a.solved and not pair.b.solved),
        solved_by_b=tuple(pair.task for pair in pairs if pair.a.scored and pair.b.solved and not pair.a.solved),
        notes=tuple(dict.fromkeys([*_notes(sides, pairs, changed, same), *reports[0].notes, *reports[1].notes])),
        same=same,
    )


def _side(place: Path, found: Report) -> Side:
    earning = [group for group in found.groups if group.rewarded]
    if len(earning) == 1:
        return Side(place, earning[0])
    if not earning:
        raise ConfigError(f"{place} has no rollouts that earn rewards, so there is nothing to compare")
    apart = "; ".join(note for note in found.notes if note.startswith(f"{len(found.groups)} tables"))
    raise ConfigError(f"{place} is more than one agent under one setting, so it cannot be compared as one: {apart}")


def _changed(one: Row, other: Row) -> bool:
    return one.digest is not None and other.digest is not None and one.digest != other.digest


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _paired(values: Iterator[tuple[float | None, float | None]]) -> Difference | None:
    known = [(a, b) for a, b in values if a is not None and b is not None]
    return paired_difference([a for a, _ in known], [b for _, b in known])


def _notes(sides: Sequence[Side], pairs: Sequence[Pair], changed: Sequence[str], same: Same | None) -> Iterator[str]:
    tasks = [{row.task for row in side.group.rows} for side in sides]
    for name, own, other in (("A", tasks[0], tasks[1]), ("B", tasks[1], tasks[0])):
        if alone := sorted(own - other):
            yield f"only in {name}, and left out: {counted(len(alone), 'task')}: {first_names(alone)}"
    if same is not None:
        yield from same.notes()
        if changed:
            yield f"changed between the gradings: {counted(len(changed), 'task')}: {first_names(changed)}"
    elif changed:
        yield (
            f"changed between the runs, and left out: {counted(len(changed), 'task')}: {first_names(changed)}; "
            "forkyard regrade grades the older run by the tasks as they are now"
        )
    if unscored := [pair.task for pair in pairs if pair.difference is None]:
        whose = f"{counted(len(unscored), 'task')}: {first_names(unscored)}"
        yield f"without a reward in A or in B, and left out of the differences: {whose}"
    moved = [pair.task for pair in pairs if pair.a.mode and pair.b.mode and pair.a.mode != pair.b.mode]
    if moved:
        yield f"graded in another mode in B than in A: {counted(len(moved), 'task')}: {first_names(moved)}"
    for name, side in zip("AB", sides, strict=True):
        lacking = {status: count for status, count in side.group.statuses.items() if status != "SCORED"}
        if lacking:
            kinds = ", ".join(f"{one_line(status)} {count}" for status, count in lacking.items())
            yield f"not scored in {name}: {sum(lacking.values())} of {side.group.overall.rollouts} rollouts: {kinds}"
