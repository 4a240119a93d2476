"""Threads for what waits for files and buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = 16


class Workers:
    """The threads of one catalogue."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "disk")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in a thread. Cancelled, it returns only when the thread is through: no file is in use by then."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as err:
                cancelled = err
        if cancelled is not None:
            future.exception()
            raise cancelled
        return future.result()

    async def close(self) -> None:
        """End the threads once they are through."""
        await asyncio.to_thread(self._pool.shutdown)
