"""Tasksets: collections of tasks, and views of them."""

from __future__ import annotations

import copy
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from pydantic import SerializeAsAny
from typing_extensions import TypeVar

from forkyard.errors import ConfigError
from forkyard.task.config import TaskConfig
from forkyard.task.data import Frozen
from forkyard.task.generics import type_argument
from forkyard.task.select import SelectConfig, TaskMatchConfig
from forkyard.task.task import Task

if TYPE_CHECKING:
    from forkyard.task.toolset import Toolset

_log = logging.getLogger(__name__)


class TasksetConfig(Frozen):
    """Subclass it to add options of a set. `task` is what its tasks are made with.

    `system_prompt` is a text file in the place of each task's system prompt.
    """

    id: str = ""
    task: SerializeAsAny[TaskConfig] = TaskConfig()
    system_prompt: Path | None = None

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.partition("@")[0].rpartition("/")[2]


TaskT = TypeVar("TaskT", bound=Task[Any, Any, Any], default=Task[Any, Any, Any])
TasksetConfigT = TypeVar("TasksetConfigT", bound=TasksetConfig, default=TasksetConfig)
Transform = Callable[[Iterator[Any]], Iterator[Any]]


class Taskset(ABC, Generic[TaskT, TasksetConfigT]):
    """Subclass it and write `load`. Iterating gives the tasks in order, each with its position as `data.idx`.

    Views are sets of the same class over the same tasks, made as they are asked for; a task keeps its position.
    """

    INFINITE: bool = False
    """Whether `load` never ends."""
    name: str = "tasks"
    system_prompt: str | None = None
    _views: tuple[Transform, ...] = ()
    _bounded: bool | None = None
    _in_order: bool = True
    _shared: Sequence[Toolset[Any, Any]] | None = None

    def __init__(self, config: TasksetConfigT | None = None) -> None:
        self.config = config if config is not None else cast(TasksetConfigT, self.config_type()())
        if self.config.system_prompt is not None:
            self.system_prompt = self.config.system_prompt.read_text()

    @abstractmethod
    def load(self) -> Iterable[TaskT]:
        """The tasks: a list, or a generator (an endless one too). Raises ConfigError."""

    @classmethod
    def task_type(cls) -> type[Task[Any, Any, Any]]:
        """The class of its tasks, as its generic base names it."""
        return type_argument(cls, Task)

    @classmethod
    def config_type(cls) -> type[TasksetConfig]:
        """The class of its config."""
        return type_argument(cls, TasksetConfig)

    @classmethod
    def toolsets(cls, config: Any) -> Sequence[Toolset[Any, Any]]:
        """The servers of tools that all rollouts of a run share."""
        return ()

    @property
    def bounded(self) -> bool:
        """Whether iterating ends."""
        return not self.INFINITE if self._bounded is None else self._bounded

    def __iter__(self) -> Iterator[TaskT]:
        tasks = self._numbered()
        for view in self._views:
            tasks = view(tasks)
        return tasks

    def _numbered(self) -> Iterator[TaskT]:
        update = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
        if self._shared is None:
            self._shared = tuple(self.toolsets(self.config))
        for idx, task in enumerate(self.load()):
            if not isinstance(task, Task):
                raise ConfigError(f"{type(self).__name__}.load gives {task!r}, which is no Task")
            numbered = task.with_data(idx=idx, **update)
            yield numbered.sharing(self._shared) if self._shared else numbered

    def include(self, **match: Any) -> Self:
        """The tasks that `idx`, `ids`, `keys` or `names` name, see `TaskMatchConfig`.

        What names no task, while others do, is told by a warning in the log. ValueError when reading might never end.
        """
        wanted = TaskMatchConfig(**match)
        if not self.bounded and (wanted.ids or wanted.keys or wanted.names):
            raise ValueError(f"{self._called} is infinite: choose from it by closed ranges of idx, or take some first")
        end = wanted.end if self._in_order else None
        view = self._view(lambda tasks: _matching(tasks, wanted, self._called, True, end))
        if wanted.end is not None:
            view._bounded = True
        return view

    def exclude(self, **match: Any) -> Self:
        """The tasks that are not named, see `include`."""
        unwanted = TaskMatchConfig(**match)
        if not self.bounded and unwanted.endless:
            raise ValueError(f"{self._called} is infinite: without an open range of idx nothing of it would be left")
        return self._view(lambda tasks: _matching(tasks, unwanted, self._called, False, None))

    def shuffle(self, seed: int = 0) -> Self:
        """The tasks in an order by chance, the same for the same seed. Raises ValueError when there is no end."""
        if not self.bounded:
            raise ValueError(f"{self._called} is infinite and cannot be shuffled: take some of it first")
        view = self._view(lambda tasks: iter(_shuffled(tasks, seed)))
        view._in_order = False
        return view

    def skip(self, count: int) -> Self:
        """The tasks after the first `count`."""
        if count < 0:
            raise ConfigError(f"cannot skip {count} tasks of {self.name}")
        return self._view(lambda tasks: islice(tasks, count, None))

    def take(self, count: int) -> Self:
        """The first `count` tasks; no more than these are built."""
        if count < 0:
            raise ConfigError(f"cannot take {count} tasks of {self.name}")
        view = self._view(lambda tasks: islice(tasks, count))
        view._bounded = True
        return view

    def select(self, config: SelectConfig) -> Self:
        """The views a config asks for, in its order."""
        view = self
        if not config.include.empty:
            view = view.include(**config.include.model_dump())
        if not config.exclude.empty:
            view = view.exclude(**config.exclude.model_dump())
        if config.shuffle:
            view = view.shuffle(config.seed)
        if config.skip:
            view = view.skip(config.skip)
        return view if config.limit is None else view.take(config.limit)

    @property
    def _called(self) -> str:
        return f"taskset {self.name} ({type(self).__name__})"

    def _view(self, transform: Transform) -> Self:
        view = copy.copy(self)
        view._views = (*self._views, transform)
        return view


def _shuffled(tasks: Iterator[TaskT], seed: int) -> list[TaskT]:
    drawn = list(tasks)
    random.Random(seed).shuffle(drawn)
    return drawn


def _matching(
    tasks: Iterator[TaskT], match: TaskMatchConfig, called: str, keep: bool, end: int | None
) -> Iterator[TaskT]:
    """The tasks that match (or do not), read to the position `end`.

    What matched nothing is logged at the end, unless nothing matched at all and none is left: that is seen anyway.
    """
    named = (("idx", match.idx), ("ids", match.ids), ("keys", match.keys), ("names", match.names))
    unmatched: dict[tuple[str, int | str], None] = {(field, item): None for field, items in named for item in items}
    some = not keep
    for task in tasks:
        hits = match.hits(task)
        some = some or bool(hits)
        for hit in hits:
            unmatched.pop(hit, None)
        if bool(hits) is keep:
            yield task
        if end is not None and (task.data.idx or 0) + 1 >= end:
            break
    if unmatched and some:
        said = ", ".join(f"{field} {item!r}" for field, item in unmatched)
        _log.warning("%s matched no task of %s", said, called)
