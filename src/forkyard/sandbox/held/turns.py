"""Changes of one thing, one after another, each done whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """`one` is held by whoever changes the thing, or looks at it while nobody may change it."""

    def __init__(self) -> None:
        self.one = asyncio.Lock()
        self._under_way: set[asyncio.Future[Any]] = set()

    async def whole(
        self, work: Callable[[], Awaitable[T]], unwanted: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Do `work` alone and, once begun, to its end: a caller that is cancelled leaves nothing half-changed.

        Such a caller waits for the end, unless it is cancelled again; what came of the work goes to `unwanted`.
        """
        await self.one.acquire()
        wanted = True

        async def to_its_end() -> T:
            try:
                result = await work()
            finally:
                self.one.release()
            if not wanted and unwanted is not None:
                await unwanted(result)
            return result

        doing = asyncio.ensure_future(to_its_end())
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            wanted = False
            if doing.done() and not doing.cancelled() and not doing.exception() and unwanted is not None:
                doing = asyncio.ensure_future(_given(unwanted, doing.result()))
            self._under_way.add(doing)
            doing.add_done_callback(self._over)
            await asyncio.wait([doing])
            raise

    def _over(self, doing: asyncio.Future[Any]) -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            doing.exception()  # seen: nobody else takes it


async def _given(take: Callable[[T], Awaitable[None]], what: T) -> T:
    await take(what)
    return what
