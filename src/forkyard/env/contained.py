"""Tasks of asyncio that an env's code starts itself: one that wants to end the process fails instead.

asyncio lets SystemExit of any task through to whoever runs the event loop, so a `sys.exit` in one episode would end a
whole run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from forkyard.errors import EnvError

T = TypeVar("T")

_inside: ContextVar[bool] = ContextVar("forkyard_inside_an_env", default=False)


@contextmanager
def contained() -> Iterator[None]:
    """Around code of an env: in tasks that it starts, and those that these start, SystemExit is an EnvError."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(_Factory(before))  # for good: episodes overlap, and elsewhere it does nothing
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class _Factory:
    """Makes the tasks of a loop, as `before` would."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self._before = before or _plain

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        return self._before(loop, _Contained(work) if _inside.get() else work, **options)


def _plain(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, **options)


class _Contained(Coroutine[Any, Any, T]):
    """A coroutine that cannot exit. It is no `async def` around it: one that is cancelled before it begins would leave
    the other never awaited.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.__name__ = getattr(work, "__name__", type(work).__name__)
        self.__qualname__ = getattr(work, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        """Go on."""
        try:
            return self._work.send(value)
        except SystemExit as err:
            raise self._failed(err) from err

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        try:
            return self._work.throw(*error)
        except SystemExit as err:
            raise self._failed(err) from err

    def close(self) -> None:
        """Give up."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def _failed(self, error: SystemExit) -> EnvError:
        return EnvError(f"{self.__qualname__}, a task that the env started, wanted to exit: SystemExit: {error}")
