"""Two connections joined: bytes go both ways, ends of file too, until both are done or nothing moves any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

PIECE = 64 << 10
PARTING = 1.0  # seconds the other side has to read the last word
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Stream:
    """The two halves of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    beneath: Stream | None = None  # what this is the TLS in: a writer that nobody holds closes its connection

    def abort(self) -> None:
        """Close at once, dropping what was not sent yet."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send, waiting while the other end is slow."""
        self.writer.write(data)
        await self.writer.drain()

    async def part(self) -> None:
        """Close so that what was sent still arrives: input that nobody read would have the kernel drop it."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PARTING):
                if not self.writer.can_write_eof():  # TLS, whose end is a message of its own
                    self.writer.close()
                    await self.writer.wait_closed()
                    return
                self.writer.write_eof()
                while await self.reader.read(PIECE):
                    pass
        self.abort()


async def pump(source: Stream, target: Stream, on_bytes: OnBytes) -> None:
    """Copy until the end of `source`, and end `target`'s input there."""
    while piece := await source.reader.read(PIECE):
        on_bytes(len(piece))
        await target.send(piece)
    if target.writer.can_write_eof():
        target.writer.write_eof()


@asynccontextmanager
async def while_moving(idle: float) -> AsyncIterator[OnBytes]:
    """Raises TimeoutError in the body after `idle` seconds in which the callback it is given was not called."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(idle) as clock:

        def moved(_: int) -> None:
            if not clock.expired():
                clock.reschedule(loop.time() + idle)

        yield moved


async def relay(one: Stream, other: Stream, idle: float) -> None:
    """Copy both ways. Raises TimeoutError after `idle` seconds in which nothing came, and OSError of a broken side."""
    async with (
        while_moving(idle) as moved,
        tasks_of(pump(one, other, moved), pump(other, one, moved)) as both,
    ):
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()


@asynccontextmanager
async def tasks_of(*works: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that do not outlive the body."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
