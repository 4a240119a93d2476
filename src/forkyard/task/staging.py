"""A task that is played in stages: several tasks one after the other, in one sandbox and on one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forkyard.trace import Trace

if TYPE_CHECKING:
    from forkyard.task.task import Task


class Staging(Protocol):
    """What `Task.in_stages` gives. Each stage that is played has a trace of its own, which joins no dataset."""

    @property
    def tasks(self) -> Sequence[tuple[str, Task[Any, Any, Any]]]:
        """The stages by name, in order. Each is set up in the sandbox as the one before left it."""
        ...

    def goes_on(self, played: Sequence[Trace]) -> bool:
        """Whether the stage after those that were played may begin."""
        ...

    def conclude(self, trace: Trace, played: Sequence[Trace]) -> None:
        """Put on the task's trace what the stages that were played came to, and settle its status."""
        ...
