"""Input on its way to a process: in order, bounded, and given to it whether or not its sender is still there."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from forkyard.sandbox import Process
from forkyard.values import MIB

LIMIT = 1 * MIB
_MESSAGE = 100  # what a message costs beside its bytes


class Feed:
    """One process's input. What comes after the end of it, or when nobody reads it any more, is dropped."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: deque[bytes | None] = deque()
        self._size = 0
        self.ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, data: bytes | None) -> None:
        """Give it more, None being the end; waits while much of what was given before has not been read."""
        while self._size >= LIMIT and not self.ended:
            self._room.clear()
            await self._room.wait()
        if not self.ended:
            self._waiting.append(data)
            self._size += _cost(data)
            self._news.set()

    async def run(self) -> None:
        """Pass it on, until the end of it or of the process."""
        try:
            with suppress(BrokenPipeError):
                while await self._pass_on():
                    pass
        finally:
            self.end()

    def end(self) -> None:
        """Nobody reads it any more."""
        self.ended = True
        self._waiting.clear()
        self._room.set()

    async def _pass_on(self) -> bool:
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        data = self._waiting.popleft()
        if data is None:
            await self._process.close_stdin()
        else:
            await self._process.write(data)
            self._size -= _cost(data)
            self._room.set()
        return data is not None


def _cost(data: bytes | None) -> int:
    return len(data or b"") + _MESSAGE
