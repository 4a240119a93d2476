"""A command that runs in a sandbox of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from forkyard.sandbox.remote.connection import Connection
from forkyard.sandbox.remote.frames import Said
from forkyard.sandbox.remote.values import BrokenWire, result_in
from forkyard.sandbox.values import ProgramResult, Stream, Terminal

_PIECE = 256 << 10


class RemoteProcess:
    """A `Process` (see the protocol)."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._turn = asyncio.Lock()
        self._pull: asyncio.Task[Said] | None = None

    async def write(self, data: bytes) -> None:
        """Give it input (see the protocol)."""
        for at in range(0, len(data), _PIECE):  # one piece at a time: what it does not take waits here
            await self._call("feed", data[at : at + _PIECE])

    async def close_stdin(self) -> None:
        """End its input (see the protocol)."""
        await self._call("close_stdin")

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Its output in pieces (see the protocol)."""
        while (piece := await self._next()) is not None:
            yield piece

    async def _next(self) -> tuple[Stream, bytes] | None:
        async with self._turn:
            if self._pull is None:
                self._pull = asyncio.create_task(self._call("output"))
                self._pull.add_done_callback(_seen)
            await asyncio.wait([self._pull])  # cancelled, it leaves the pull to whoever comes next
            pull, self._pull = self._pull, None
        said = pull.result()
        match said.value:
            case None:
                return None
            case "stdout" | "stderr" as stream:
                return stream, said.data
        raise BrokenWire("output of no stream")

    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size (see the protocol)."""
        size = Terminal(cols, rows)
        await self._call("resize", cols=size.cols, rows=size.rows)

    async def kill(self) -> None:
        """Kill the whole tree it started (see the protocol)."""
        await self._call("kill")

    async def wait(self) -> ProgramResult:
        """How it ended (see the protocol)."""
        said = await self._call("wait")
        return result_in(said.value, said.data)

    async def _call(self, do: str, data: bytes = b"", **args: Any) -> Said:
        return await self._connection.call(do, {"process": self._number, **args}, data)


def _seen(pull: asyncio.Task[Said]) -> None:
    """Nobody has to want a piece that was asked for."""
    if not pull.cancelled():
        pull.exception()
