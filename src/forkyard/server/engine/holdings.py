"""What one session has made, by number; all of it ends with the session."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from forkyard.errors import ForkyardError, SandboxLost
from forkyard.sandbox import Process, Sandbox, Visit
from forkyard.sandbox.remote.values import BrokenWire, dumped
from forkyard.sandbox.values import Stream

_AT_ONCE = 16  # sandboxes that are ended at once
_PROCESSES = 10_000  # of one session: of more, the oldest whose sandboxes were closed are forgotten


@dataclass(slots=True)
class Box:
    """A sandbox, and what its client was last told of it. `survives` is as it was asked for."""

    number: int
    sandbox: Sandbox
    survives: bool
    told: tuple[Any, tuple[Visit, ...]] | None = None
    listeners: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by port

    def news(self) -> dict[str, Any] | None:
        """What has changed of it since somebody was told."""
        now = self.sandbox.info, self.sandbox.visits
        if now == self.told:
            return None
        before, self.told = self.told, now
        news = {"info": dumped(now[0])}
        if before is None or now[1] != before[1]:
            news["visits"] = [dumped(visit) for visit in now[1]]
        return news


class Spawned:
    """A process, and its output as it is pulled."""

    def __init__(self, process: Process, box: int) -> None:
        self.process = process
        self.box = box
        self._output: AsyncIterator[tuple[Stream, bytes]] | None = None

    async def next(self) -> tuple[Stream, bytes] | None:
        """The next piece, or None."""
        if self._output is None:
            self._output = self.process.output()
        try:
            return await anext(self._output, None)
        except BaseException:
            self._output = None  # another one goes on where this was
            raise


class Holdings:
    """The sandboxes and processes of one session."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._boxes: dict[int, Box] = {}
        self._processes: dict[int, Spawned] = {}

    def add(self, sandbox: Sandbox, *, survives: bool = False) -> Box:
        """Hold a sandbox."""
        box = Box(next(self._numbers), sandbox, survives)
        self._boxes[box.number] = box
        return box

    def box(self, number: Any) -> Box:
        """The sandbox of a number. Raises SandboxLost when it is held no more."""
        if not isinstance(number, int):
            raise BrokenWire("no number of a sandbox")
        if (box := self._boxes.get(number)) is None:
            raise SandboxLost("the sandbox was closed")
        return box

    def spawned(self, process: Process, box: Box) -> int:
        """Hold a process; its number."""
        number = next(self._numbers)
        self._processes[number] = Spawned(process, box.number)
        if len(self._processes) > _PROCESSES:
            gone = [number for number, each in self._processes.items() if each.box not in self._boxes]
            for each in gone[: _PROCESSES // 10]:
                del self._processes[each]
        return number

    def process(self, number: Any) -> Spawned:
        """The process of a number. Raises SandboxLost when it is held no more."""
        if not isinstance(number, int):
            raise BrokenWire("no number of a process")
        if (spawned := self._processes.get(number)) is None:
            raise SandboxLost("the sandbox of this process was closed")
        return spawned

    async def listen(self, box: Box, port: int, again: bool, accepted: Callable[[int, socket.socket], Any]) -> int:
        """Listen at a port inside, and give away what connects there; the listener's number."""
        if again and (before := box.listeners.pop(port, None)) is not None:
            await _ended(before)
        number = next(self._numbers)
        sock = await box.sandbox.listen(port)
        box.listeners[port] = asyncio.create_task(_accepting(sock, number, accepted))
        return number

    async def close(self, box: Box) -> None:
        """End a sandbox for good, and hold it no more."""
        await self._let_go(box)
        await box.sandbox.close()

    async def leave(self) -> None:
        """End all of it: a stopped sandbox with a name stays, and one that survives is stopped for that."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def leave(box: Box) -> None:
            async with places:
                await self._let_go(box)
                with suppress(ForkyardError, OSError):
                    await _leave(box)

        while self._boxes:
            await asyncio.gather(*(leave(box) for box in list(self._boxes.values())))

    async def _let_go(self, box: Box) -> None:
        self._boxes.pop(box.number, None)
        listeners, box.listeners = list(box.listeners.values()), {}
        for listener in listeners:
            await _ended(listener)


async def _leave(box: Box) -> None:
    sandbox = box.sandbox
    if box.survives and sandbox.info.state != "stopped":
        await sandbox.stop()
    elif not box.survives and not (sandbox.info.state == "stopped" and sandbox.info.name is not None):
        await sandbox.close()


async def _accepting(sock: socket.socket, number: int, accepted: Callable[[int, socket.socket], Any]) -> None:
    sock.setblocking(False)
    with sock:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(sock)
            await accepted(number, connection)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
