"""Archives made ahead of their use: one in a thread, while the one before is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self


class Ahead:
    """Iterates over a generator of archives. The thread is its own, since it may wait long for what the archives
    are made of; `wake` ends such waiting.
    """

    def __init__(self, archives: Generator[bytes, None, None], wake: Callable[[], None]) -> None:
        self._archives, self._wake = archives, wake
        self._thread = ThreadPoolExecutor(1, "forkyard-layer")
        self._step = self._begin()

    def _begin(self) -> asyncio.Future[bytes | None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, next, self._archives, None)

    async def __aenter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        archive = await asyncio.shield(self._step)
        if archive is None:
            raise StopAsyncIteration
        self._step = self._begin()
        return archive

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not self._step.done():
            self._wake()
            await asyncio.wait([self._step])  # a generator cannot be closed while a thread is inside it
        if not self._step.cancelled():
            self._step.exception()  # seen: another error came first
        self._archives.close()
        self._thread.shutdown()
