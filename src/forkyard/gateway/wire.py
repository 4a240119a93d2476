"""Sockets to providers, for the HTTP connections of httpcore: with little between them and the event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any

import httpcore2

from forkyard.values import MIB

_UNREAD_LIMIT = MIB
_PARALLEL_SECONDS = 0.25
"""How long the first of a name's addresses is tried before the next is tried too."""
_EXTRA = {"client_addr": "sockname", "server_addr": "peername", "socket": "socket", "ssl_object": "ssl_object"}


class Network(httpcore2.AsyncNetworkBackend):
    """Opens sockets by the event loop."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A socket to a port of a host. Raises ConnectError and ConnectTimeout of httpcore."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, wire = await loop.create_connection(Wire, host, port, happy_eyeballs_delay=_PARALLEL_SECONDS)
        except TimeoutError as err:
            raise httpcore2.ConnectTimeout(str(err)) from err
        except OSError as err:
            raise httpcore2.ConnectError(str(err)) from err
        return wire

    async def sleep(self, seconds: float) -> None:
        """Wait before another attempt to connect."""
        await asyncio.sleep(seconds)


class Wire(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One socket. What is written leaves together when the other side is listened to: a request is one packet.

    `deadline` ends the wait for bytes, in the event loop's time, however little is missing of a `timeout`.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._transport: asyncio.Transport
        self._written: list[bytes] = []
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._held = False  # the other side is kept from sending more
        self._over = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    # What httpcore asks.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes, none at the end. Raises ReadError and ReadTimeout of httpcore."""
        if self._written:
            self._flush()
        while not self._unread and not self._over:
            await self._news(timeout)
        if not self._unread:
            if self._error is not None:
                raise httpcore2.ReadError(str(self._error)) from self._error
            return b""
        piece = self._unread.popleft()
        if len(piece) > max_bytes:
            self._unread.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self._size -= len(piece)
        if self._held and self._size < _UNREAD_LIMIT:
            self._held = False
            self._transport.resume_reading()
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Put bytes where they leave with the next `read`."""
        if buffer:
            self._written.append(buffer)

    async def aclose(self) -> None:
        """Let the socket go at once."""
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Go on encrypted. Raises ConnectError and ConnectTimeout of httpcore."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(self._transport, self, ssl_context, server_hostname=server_hostname)
        except BaseException as err:
            self._transport.abort()
            if isinstance(err, TimeoutError):
                raise httpcore2.ConnectTimeout(str(err)) from err
            if isinstance(err, OSError):
                raise httpcore2.ConnectError(str(err)) from err
            raise
        if transport is None:
            raise httpcore2.ConnectError("the connection was lost while it was being encrypted")
        self._transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """What httpcore wants to know of a socket."""
        if info == "is_readable":  # an idle connection on which something comes is of no more use
            return self._over or bool(self._unread)
        return self._transport.get_extra_info(_EXTRA[info]) if info in _EXTRA else None

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._unread.append(data)
        self._size += len(data)
        if self._size >= _UNREAD_LIMIT and not self._held:
            self._held = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._over = True
        self._error = self._error or exc
        self._wake()

    def resume_writing(self) -> None:
        """A long request has left: only now does the wait for its reply begin."""
        self._wake()

    def _flush(self) -> None:
        written, self._written = self._written, []
        if not self._transport.is_closing():
            self._transport.write(written[0] if len(written) == 1 else b"".join(written))

    async def _news(self, timeout: float | None) -> None:
        """Wait until something has happened. Raises ReadTimeout."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        # A timer of its own costs a fraction of asyncio.timeout, and this is waited for at every piece of a stream.
        ends = [moment for moment in (self.deadline, timeout and loop.time() + timeout) if moment is not None]
        late = loop.call_at(min(ends), _late, waiting) if ends else None
        try:
            await waiting
        except TimeoutError as err:
            raise httpcore2.ReadTimeout("nothing came in time") from err
        finally:
            self._waiting = None
            if late is not None:
                late.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _late(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())
