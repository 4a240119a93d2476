"""One definition of a verb for both kinds of programs: it is async, runs in a loop of its own, and is waited for.

    sandbox.exec("true")              # blocks
    await sandbox.exec.aio("true")    # does not

All of it runs in one thread of this process, so that both may use one object, from any thread and any event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from forkyard.values import nearest

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
_END_SECONDS = 10.0


class Background:
    """The loop of the verbs, in a thread that begins with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="forkyard", daemon=True).start()
            return self._loop

    @property
    def running(self) -> bool:
        """Whether there is one."""
        return self._loop is not None

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there, and wait for it; whoever is interrupted meanwhile cancels it."""
        if threading.current_thread().name == "forkyard" and _running() is self._loop:
            work.close()
            raise RuntimeError("a verb that blocks was called where verbs run: await its .aio(...)")
        doing = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

    async def done(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a program with a loop of its own."""
        if _running() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def end_all(self) -> None:
        """Cancel whatever is still done there, because the program ends; to be done there itself."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_END_SECONDS)

    def forget(self) -> None:
        """In a child of a fork there is no such thread."""
        self._lock = threading.Lock()
        self._loop = None


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.forget)


class _Signature:
    """What `inspect.signature` and `help` are told of a verb, found out when they ask."""

    def __get__(self, on: Verb[..., Any] | None, owner: type[Any]) -> inspect.Signature:
        if on is None:
            raise AttributeError("__signature__")
        return inspect.signature(on.call)


class Verb(Generic[P, T]):
    """Called, it blocks until it is done; `aio` is the same to be awaited. TypeError for what it does not take."""

    __signature__ = _Signature()

    def __init__(self, call: Callable[P, Coroutine[Any, Any, T]]) -> None:
        self.call = call
        self.name = str(getattr(getattr(call, "func", call), "__name__", "it"))
        self.__doc__ = call.__doc__

    def __call__(self, *args: P.args, **options: P.kwargs) -> T:
        """It, blocking."""
        return BACKGROUND.wait(self._begun(*args, **options))

    async def aio(self, *args: P.args, **options: P.kwargs) -> T:
        """It, to be awaited."""
        return await BACKGROUND.done(self._begun(*args, **options))

    def _begun(self, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        try:
            return self.call(*args, **options)
        except TypeError as err:
            raise TypeError(self._told(args, options) or str(err)) from None

    def _told(self, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """What does not fit: an option there is none of, with the one that was likely meant, or how it is called."""
        known = inspect.signature(self.call).parameters
        unknown = next((name for name in options if name not in known), None)
        if unknown is not None:
            near = nearest(unknown, known)
            meant = f"did you mean {near!r}? " if near else ""
            return f"there is no option {unknown!r}: {meant}There are {', '.join(known) or 'none'}"
        try:
            inspect.signature(self.call).bind(*args, **options)
        except TypeError as err:
            return f"{err}: call it as {self.usage}. {(self.__doc__ or '').partition(chr(10))[0]}"
        return None

    @property
    def usage(self) -> str:
        """How it is called: its name and its parameters with their defaults, as `fork(name=None, *, wait=True)`."""
        signature = inspect.signature(self.call)
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        return f"{self.name}{inspect.Signature(bare)}"


class verb(Generic[S, P, T]):
    """Makes a method that is async a `Verb`."""

    def __init__(self, call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> None:
        self.call = call

    @overload
    def __get__(self, on: None, owner: type[Any]) -> verb[S, P, T]: ...
    @overload
    def __get__(self, on: S, owner: type[Any]) -> Verb[P, T]: ...
    def __get__(self, on: S | None, owner: type[Any]) -> verb[S, P, T] | Verb[P, T]:
        if on is None:
            return self
        bound = partial(self.call, on)
        bound.__doc__ = self.call.__doc__
        return Verb(bound)
