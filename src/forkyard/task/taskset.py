"""Tasksets: named collections of tasks, and views of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice

from forkyard.errors import ConfigError
from forkyard.task.task import Task


class Taskset(ABC):
    """Subclass it and write `load`. Iterating gives the tasks in order, each with its position as `data.idx`."""

    name: str = "tasks"

    @abstractmethod
    def load(self) -> Iterable[Task]:
        """The tasks: a list, or a generator (an endless one too). Raises ConfigError."""

    def __iter__(self) -> Iterator[Task]:
        for idx, task in enumerate(self.load()):
            if not isinstance(task, Task):
                raise ConfigError(f"{type(self).__name__}.load gives {task!r}, which is no Task")
            yield task.with_data(idx=idx)

    def include(self, *patterns: str) -> Taskset:
        """A view of the tasks whose name or id matches one of the patterns (as in a shell)."""
        return _Filtered(self, patterns, keep=True)

    def exclude(self, *patterns: str) -> Taskset:
        """A view without the tasks whose name or id matches one of the patterns."""
        return _Filtered(self, patterns, keep=False)

    def take(self, count: int) -> Taskset:
        """A view of the first `count` tasks; no more than these are built."""
        return _First(self, count)


class _View(Taskset):
    """Tasks of another set; they keep the positions they have there."""

    def __init__(self, base: Taskset) -> None:
        self.name = base.name
        self._base = base

    def __iter__(self) -> Iterator[Task]:
        return iter(self.load())


class _Filtered(_View):
    def __init__(self, base: Taskset, patterns: tuple[str, ...], keep: bool) -> None:
        super().__init__(base)
        self._patterns = patterns
        self._keep = keep

    def load(self) -> Iterator[Task]:
        unmatched = dict.fromkeys(self._patterns)
        names: list[str] = []
        for task in self._base:
            matching = [pattern for pattern in self._patterns if _matches(task, pattern)]
            for pattern in matching:
                unmatched.pop(pattern, None)
            if len(names) < 20:
                names.append(task.name)
            if bool(matching) is self._keep:
                yield task
        if unmatched:  # a pattern that selects nothing is a mistake in it, never a smaller set
            raise ConfigError(
                *(f"no task of {self.name} matches {p!r}; its tasks are: {', '.join(names)}" for p in unmatched)
            )


class _First(_View):
    def __init__(self, base: Taskset, count: int) -> None:
        super().__init__(base)
        if count < 0:
            raise ConfigError(f"cannot take {count} tasks of {base.name}")
        self._count = count

    def load(self) -> Iterator[Task]:
        return islice(iter(self._base), self._count)


def _matches(task: Task, pattern: str) -> bool:
    return any(name is not None and fnmatchcase(name, pattern) for name in (task.name, task.data.id))
