"""A port of a sandbox on this machine's own loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from forkyard.errors import SandboxError
from forkyard.sandbox.network.streams import PIECE, Stream, relay

IDLE = 3600.0


class Connects(Protocol):
    """A sandbox, as far as it is needed here."""

    async def connect(self, port: int) -> socket.socket:
        """As `Sandbox.connect`."""
        ...


@asynccontextmanager
async def forwarded(sandbox: Connects, port: int, at: int = 0) -> AsyncIterator[tuple[str, int]]:
    """Serve `port` of a sandbox at 127.0.0.1:`at` of this machine (0: any free port); gives the address.

    Connections that the sandbox does not accept are closed. Everything ends with the body.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def accept(listening: socket.socket) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(listening)
            task = asyncio.create_task(_carry(sandbox, port, client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    with socket.create_server(("127.0.0.1", at)) as listening:
        listening.setblocking(False)
        tasks.add(asyncio.create_task(accept(listening)))
        try:
            yield listening.getsockname()
        finally:
            ending = list(tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


async def _carry(sandbox: Connects, port: int, client: socket.socket) -> None:
    with client:
        try:
            inside = await sandbox.connect(port)
        except (SandboxError, ConnectionError):
            return
        outer = Stream(*await asyncio.open_connection(sock=client, limit=PIECE))
        inner = Stream(*await asyncio.open_connection(sock=inside, limit=PIECE))
        try:
            with suppress(OSError, TimeoutError):
                await relay(outer, inner, IDLE)
                await outer.part()
        finally:
            outer.abort()
            inner.abort()
