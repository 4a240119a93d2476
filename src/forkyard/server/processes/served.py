"""A process of a sandbox as the server serves it: it goes on whoever looks on, and what it writes is kept for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import Process, ProgramResult
from forkyard.server.processes.feed import Feed
from forkyard.server.processes.output import Log

WINDOW = 256 << 10
"""Bytes a reader may be behind before the process has to wait for it."""
PATIENCE = 30.0
"""Seconds a process waits for a reader that takes nothing."""
_LIMITS = {
    "oom": "it was killed: the sandbox's memory was full",
    "disk": "it was killed: the sandbox's disk was full",
    "output": "it was killed: the sandbox may write no more output",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its clients are told."""

    status: Literal["completed", "failed", "cancelled", "timed_out"]
    code: int | None = None
    reason: str | None = None


class Reader:
    """One who looks on, and how far it is."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.since: float | None = None  # when it was last found to be far behind, and took nothing after that
        self.given_up = False

    def behind(self, log: Log) -> bool:
        """Whether it has much left to take."""
        return log.end - self.cursor > WINDOW


class ServedProcess:
    """A process with an id. `news` is set, and replaced, when there is more output, or the end."""

    def __init__(
        self, id: str, process: Process, log: Log, lost: Callable[[str], None], patience: float = PATIENCE
    ) -> None:
        self.id = id
        self.log = log
        self.exit: Exit | None = None
        self.news = asyncio.Event()
        self._feed = Feed(process)
        self._feeding: asyncio.Task[None] | None = None  # from when there is something to give it
        self._process = process
        self._lost = lost
        self._patience = patience
        self._why: Exit | None = None  # it is being killed
        self._readers: list[Reader] = []
        self._progress = asyncio.Event()

    async def live(self, timeout: float | None) -> None:
        """Serve it until it has ended. Cancelled, it is left alone."""
        deadline = asyncio.create_task(self._ended_after(timeout)) if timeout is not None else None
        try:
            async for stream, data in self._process.output():
                self.log.add(stream, data)
                self._tell()
                await self._in_step()
            self.exit = self._exit_of(await self._process.wait())
        except SandboxError as err:
            self.exit = Exit("failed", reason=f"its sandbox has ended: {err}")
            if isinstance(err, SandboxLost):
                self._lost(str(err))
        finally:
            self._feed.end()
            for task in (self._feeding, deadline):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
        self._tell()

    async def put(self, data: bytes | None) -> None:
        """Give it input, None being the end; waits while much of what it was given before has not been read."""
        if self._feeding is None and not self._feed.ended:
            self._feeding = asyncio.create_task(self._feed.run())
        await self._feed.put(data)

    async def _ended_after(self, timeout: float) -> None:
        await asyncio.sleep(timeout)
        await self._kill(Exit("timed_out", reason=f"it took longer than {timeout:g} seconds"))

    async def kill(self) -> None:
        """Kill it and all it started; nothing when it has ended."""
        await self._kill(Exit("cancelled", reason="it was killed"))

    async def _kill(self, why: Exit) -> None:
        if self.exit is None:
            self._why = self._why or why
            await self._process.kill()

    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size. ValueError when it has none."""
        await self._process.resize(cols, rows)

    def _exit_of(self, result: ProgramResult) -> Exit:
        if self._why is not None and result.signal is not None:
            return self._why
        code = 128 + result.signal if result.signal is not None else result.exit_code
        return Exit("completed", code, _LIMITS.get(result.ended_by or ""))

    def _tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    @contextmanager
    def read_from(self, cursor: int) -> Iterator[Reader]:
        """Look on from an offset of the output on: until it is left, the process waits for the reader."""
        reader = Reader(cursor)
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self._progress.set()

    def taken(self, reader: Reader, cursor: int) -> None:
        """A reader is as far as that now."""
        reader.cursor, reader.since, reader.given_up = cursor, None, False
        self._progress.set()

    async def _in_step(self) -> None:
        """Wait for readers who are far behind, but not for ever for one that takes nothing."""
        while slow := [each for each in self._readers if each.behind(self.log) and not each.given_up]:
            self._progress.clear()
            now = time.monotonic()
            waited = {each: now - (each.since or now) for each in slow}
            for each in slow:
                each.since = now - waited[each]
                each.given_up = waited[each] >= self._patience
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience - max(waited.values())):
                    await self._progress.wait()
