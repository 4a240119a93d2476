"""Reading an object of a bucket while it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from forkyard.disk.values import ObjectInfo

_PIECE = 1 << 18


class BucketReading:
    """The body of one answer; `run` calls in a thread."""

    def __init__(
        self, info: ObjectInfo, start: int, stop: int, body: Any, run: Callable[..., Awaitable[bytes | None]]
    ) -> None:
        self.info = info
        self.start = start
        self.stop = stop
        self._body = body
        self._run = run

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._run(self._body.read, _PIECE):
                yield piece
        finally:
            self._body.close()

    async def read(self) -> bytes:
        """All of it at once."""
        return b"".join([piece async for piece in self])

    async def close(self) -> None:
        """Give the connection up."""
        self._body.close()
