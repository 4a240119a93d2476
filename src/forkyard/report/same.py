"""Runs of the same rollouts: one was graded or scored again from the other, or both from a third.

What differs between such lines is the grading alone, so each is held against its own, whatever became of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from forkyard.report.files import files_of
from forkyard.report.outcome import outcome
from forkyard.trace.store import Record, latest, read_traces
from forkyard.values import counted, first_names, one_line

_HOW = {True: "graded again", False: "as graded first"}


class _Line(NamedTuple):
    rollout: str | None
    regraded: bool
    name: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Same:
    """Which rollouts two runs share, by their ids, and those whose reward is another: `(name, in A, in B)`.

    `regraded` says of A and of B whether it holds them as they were graded again, `unshared` how many it has besides.
    """

    rollouts: frozenset[str]
    changed: tuple[tuple[str, float | None, float | None], ...]
    regraded: tuple[bool, bool]
    unshared: tuple[int, int]

    def holds(self, record: Record) -> bool:
        """Whether a line is of one of them."""
        return rollout_of(record)[0] in self.rollouts

    def notes(self) -> Iterator[str]:
        """What a reader of the comparison has to know."""
        how = " and in ".join(f"{name} {_HOW[regraded]}" for name, regraded in zip("AB", self.regraded, strict=True))
        yield f"the same {counted(len(self.rollouts), 'rollout')}, in {how}: each is held against itself"
        for name, unshared in zip("AB", self.unshared, strict=True):
            if unshared:
                yield f"only in {name}, and left out: {counted(unshared, 'rollout')}"
        if self.changed:
            told = [f"{one_line(name)} ({_shown(a)} -> {_shown(b)})" for name, a, b in self.changed]
            yield f"another reward in B than in A: {counted(len(told), 'rollout')}: {first_names(told)}"


def same_rollouts(a: Path, b: Path) -> Same | None:
    """The rollouts that two runs share, None for runs that were played each by itself. Raises as `report` does."""
    if not (_is_derived(a) or _is_derived(b)):
        return None
    one, other = _lines(a), _lines(b)
    if one is None or other is None:
        return None
    shared = one.keys() & other.keys()
    regraded = all(line.regraded for line in one.values()), all(line.regraded for line in other.values())
    of_one = regraded[1] and len(shared) == len(other), regraded[0] and len(shared) == len(one)
    if not shared or not (any(of_one) or all(regraded)):
        return None
    pairs = [(one[rollout], other[rollout]) for rollout in one if rollout in shared]
    changed = tuple((x.name, x.reward, y.reward) for x, y in pairs if x.reward != y.reward)
    return Same(frozenset(shared), changed, regraded, (len(one) - len(shared), len(other) - len(shared)))


def rollout_of(record: Record) -> tuple[str | None, bool]:
    """The id of the rollout that a line is of, and whether it was graded again: the id is that of its first line."""
    info = record.get("info")
    known = info if isinstance(info, dict) else {}
    replay = known.get("replay")
    origin = known.get("regraded_from") or (replay.get("id") if isinstance(replay, dict) else None)
    found = origin or record.get("id")
    return (found if isinstance(found, str) else None), bool(origin)


def _is_derived(run: Path) -> bool:
    """Whether a run was graded or scored again: if it was derived, its first line already says so."""
    first = next((record for file in files_of([run]) for record in read_traces(file)), None)
    return first is not None and rollout_of(first)[1]


def _lines(run: Path) -> Mapping[str, _Line] | None:
    """The lines that count, by rollout; None when one does not say which it is of, or two are of the same."""
    lines, _ = latest((record for file in files_of([run]) for record in read_traces(file)), _line)
    found = {line.rollout: line for line in lines if line.rollout is not None}
    return found if len(found) == len(lines) else None


def _line(record: Record) -> _Line:
    told = outcome(record)
    return _Line(*rollout_of(record), f"{told.task} #{record.get('sample')}", told.reward if told.scored else None)


def _shown(reward: float | None) -> str:
    return "no reward" if reward is None else f"{reward:.4g}"
