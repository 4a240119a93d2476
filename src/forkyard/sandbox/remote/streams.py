"""A connection of a sandbox's port over a web socket of its own: bytes either way, each end told by the text "end"."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

END = "end"
_PIECE = 64 << 10

Send = Callable[[str | bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[str | bytes]]


async def relayed(sock: socket.socket, send: Send, receive: Receive) -> None:
    """Pass bytes on both ways until both sides have ended, or one is gone; `sock` is closed then.

    What `send` and `receive` raise when the web socket is gone passes.
    """
    sock.setblocking(False)
    tasks = [asyncio.ensure_future(_out(sock, send)), asyncio.ensure_future(_in(sock, receive))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sock.close()


async def _out(sock: socket.socket, send: Send) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await loop.sock_recv(sock, _PIECE):
            await send(data)
    await send(END)


async def _in(sock: socket.socket, receive: Receive) -> None:
    loop = asyncio.get_running_loop()
    gone = False
    while (message := await receive()) != END:
        if isinstance(message, bytes) and not gone:
            try:
                await loop.sock_sendall(sock, message)
            except ConnectionError:  # it reads no more, but may still have something to say
                gone = True
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
