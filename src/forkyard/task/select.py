"""Which tasks of a set a run plays."""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field, field_validator

from forkyard.task.data import Frozen
from forkyard.task.task import Task

_SLICE = re.compile(r"(\d*):(\d*)(?::(\d*))?")


class TaskMatchConfig(Frozen):
    """Tasks by position ("10", or "start:stop:step" without negative numbers), by id, by key, by name or pattern of it.

    A task matches when one of the lists names it.
    """

    idx: tuple[int | str, ...] = Field((), description="Positions, as 3 or 10:20.")
    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @field_validator("idx", mode="before")
    @classmethod
    def _positions(cls, value: Any) -> tuple[int | str, ...]:
        listed = [value] if isinstance(value, int | str) else list(value)
        pieces = [piece for item in listed for piece in (item.split(",") if isinstance(item, str) else [item])]
        return tuple(_position(piece) for piece in pieces)

    @property
    def empty(self) -> bool:
        """Whether it names nothing."""
        return not (self.idx or self.ids or self.keys or self.names)

    @property
    def ranges(self) -> dict[int | str, range]:
        """Each of `idx` as the positions it means."""
        return {item: _range(item) for item in self.idx}

    @property
    def end(self) -> int | None:
        """Behind the last position that can match; None when any can."""
        if self.ids or self.keys or self.names or not self.idx:
            return None
        stop = max(each.stop for each in self.ranges.values())
        return None if stop == sys.maxsize else stop

    @property
    def endless(self) -> bool:
        """Whether every position from some on matches."""
        return any(each.stop == sys.maxsize and each.step == 1 for each in self.ranges.values())

    def hits(self, task: Task[Any, Any, Any]) -> list[tuple[str, int | str]]:
        """What of it names the task."""
        idx = task.data.idx
        found: list[tuple[str, int | str]] = [("idx", item) for item, each in self.ranges.items() if idx in each]
        found += [("ids", item) for item in self.ids if item == task.data.id]
        found += [("keys", item) for item in self.keys if item == task.key]
        found += [("names", item) for item in self.names if item == task.name or fnmatchcase(task.name, item)]
        return found


class SelectConfig(Frozen):
    """The steps in their order: `include`, `exclude`, `shuffle` by `seed`, `skip`, `limit`."""

    include: TaskMatchConfig = TaskMatchConfig()
    exclude: TaskMatchConfig = TaskMatchConfig()
    shuffle: bool = Field(False, description="Put the tasks into an order by chance.")
    seed: int = Field(0, description="The same order for the same seed.")
    skip: int = Field(0, ge=0, description="Leave out the first tasks.")
    limit: int | None = Field(None, ge=1, description="Play only so many tasks.")


def _position(item: int | str) -> int | str:
    text = str(item).strip()
    if text.isdigit():
        return int(text)
    found = _SLICE.fullmatch(text)
    if found is None:
        raise ValueError(f"idx {item!r} is neither a position from 0 on nor start:stop:step")
    start, stop, step = found.groups()
    if step and not int(step):
        raise ValueError(f"idx {item!r} has the step 0")
    if stop and int(start or 0) >= int(stop):
        raise ValueError(f"idx {item!r} is empty")
    return text


def _range(item: int | str) -> range:
    if isinstance(item, int):
        return range(item, item + 1)
    start, stop, step = [*item.split(":"), ""][:3]
    return range(int(start or 0), int(stop or sys.maxsize), int(step or 1))
