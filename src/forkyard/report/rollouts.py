"""The rollouts of a file of lines: which of them are meant, a row for each, and the one that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError
from forkyard.report.files import torn_notes
from forkyard.report.outcome import outcome
from forkyard.report.table import aligned, money, name_shown, shown
from forkyard.trace import Status, is_full
from forkyard.trace.store import Record, read_traces, slot_of
from forkyard.values import counted, first_names, number, one_line

PHASES = ("fork_ms", "setup_ms", "agent_ms", "grade_ms")
ID_SHOWN = 8
_DIGITS = 10
_HEAD = ("#", "id", "task", "sample", "attempt", "agent", "status", "reward", "stop", "steps", "tokens in")
_REST = ("tokens out", "cost", "seconds", "reason")
_DULL = frozenset({"attempt", "agent", "cost", "reason"})  # left out where they say the same of every rollout


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rollouts are meant: those of a task, with a status, that failed, with a reward of at least so much.

    To have failed is to have earned less than 1, or no reward; a judge or simulated user that ended well has not.
    """

    task: str | None = None
    status: Status | None = None
    failed: bool = False
    min_reward: float | None = None

    def leaves_out(self, record: Record) -> str | None:
        """Why a line is none of them; None when it is."""
        found = outcome(record)
        beside = record.get("trainable") is False and found.scored and not found.rewarded
        if self.task is not None and found.task != self.task:
            return "of other tasks"
        if self.status is not None and found.status != self.status:
            return f"with status {found.status}"
        if self.failed and (beside or (found.scored and is_full(found.reward))):
            return "that did not fail"
        if self.min_reward is not None and not (found.reward is not None and found.reward >= self.min_reward):
            return f"with no reward of at least {self.min_reward:g}"
        return None


Numbered = tuple[int, Record]
"""A line, and which of its file it is, from 1."""


def chosen(file: Path, choice: Choice) -> Iterator[Numbered]:
    """The lines that are meant, one in memory at a time. ConfigError for a line that is no record."""
    for place, record in enumerate(read_traces(file), 1):
        if choice.leaves_out(record) is None:
            yield place, record


def named(file: Path, name: str, choice: Choice) -> list[Numbered]:
    """The rollout of that number, id or beginning of an id; of TASK#SAMPLE all that its episode has.

    Raises ConfigError when there is none, or ids of several begin so.
    """
    task, _, sample = name.rpartition("#")
    slot = (task.rstrip(), int(sample)) if task and sample.isdecimal() and len(sample) < _DIGITS else None
    numbered: list[Numbered] = []
    exact: list[Numbered] = []
    played: list[Numbered] = []
    begun: list[Numbered] = []
    ids: set[str] = set()
    for each in chosen(file, choice):
        own = each[1].get("id")
        if name == str(each[0]):
            numbered.append(each)
        elif own == name:
            exact.append(each)
        elif slot is not None and slot_of(each[1]) == slot:
            played.append(each)
        elif isinstance(own, str) and name and own.startswith(name):
            ids.add(own)
            begun += [each] if len(ids) == 1 else []  # lines of one id are enough to be held
    if len(ids) > 1 and not (numbered or exact or played):
        raise ConfigError(f"{name!r} begins {len(ids)} ids: {first_names([one_line(own) for own in sorted(ids)])}")
    found = exact or numbered or played or begun
    if not found and choice != Choice():
        why = choice.leaves_out(named(file, name, Choice())[0][1])
        raise ConfigError(f"the options leave rollout {name!r} out: it is one of those {why}")
    if not found:
        raise ConfigError(
            f"no rollout {name!r} in {file}: give its number, its id or the beginning of that, or TASK#SAMPLE, "
            "as forkyard show lists them"
        )
    return found


def rollouts_text(file: Path, choice: Choice, *, full: bool = False) -> str:
    """The table of the rollouts that are meant, safe to print. With `full` no name and no reason is cut."""
    show = one_line if full else name_shown
    rows: list[tuple[str, ...]] = [_HEAD + _REST]
    total = 0
    for total, record in enumerate(read_traces(file), 1):
        if choice.leaves_out(record) is None:
            rows.append(tuple(map(show, _cells(total, record))))
    columns = list(zip(*rows, strict=True))
    kept = [column for column in columns if column[0] not in _DULL or len(set(column[1:])) > 1 or _telling(column)]
    several = "" if len(rows) - 1 == total else f"{len(rows) - 1} of "
    foot = [f"{several}{counted(total, 'rollout')}", *map(one_line, torn_notes([file]))]
    table = list(aligned(list(zip(*kept, strict=True)))) if len(rows) > 1 else []
    return "\n".join([*table, *foot])


def _telling(column: Sequence[str]) -> bool:
    return not {"-", "0"}.issuperset(column[1:]) and column[0] != "agent"


def _cells(place: int, record: Record) -> Iterable[str]:
    found = outcome(record)
    usage = record.get("usage")
    tokens = usage if isinstance(usage, dict) else {}
    yield str(place)
    yield _word(record.get("id"))[:ID_SHOWN]
    yield found.task
    yield _word(record.get("sample"))
    yield _word(record.get("attempt", 0))
    yield found.agent
    yield found.status
    yield shown(found.reward)
    yield _word(record.get("stop"))
    yield _word(record.get("steps"))
    yield from (f"{number(tokens.get(name)) or 0:,.0f}" for name in ("input", "output"))
    yield "-" if found.cost is None else money(found.cost)
    yield shown(seconds_of(record))
    yield _word(record.get("reason")).partition("\n")[0]


def seconds_of(record: Record) -> float | None:
    """How long a rollout took, all of its phases together; None when it tells of none."""
    known = [ms for name in PHASES if (ms := number(record.get(name))) is not None]
    return sum(known) / 1000 if known else None


def _word(value: Any) -> str:
    return "-" if value is None else str(value)
