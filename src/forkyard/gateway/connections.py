"""Connections of clients, over uvicorn's and the parser of httptools. Imported when the first listener is made."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from forkyard.gateway.serving import Asgi

CONNECTIONS = 512
HEAD_SECONDS = 30.0
HEAD_LIMIT = 65_536
IDLE_SECONDS = 75

_quiet = logging.getLogger("forkyard.gateway.connections")
_quiet.setLevel(logging.CRITICAL)  # what a hostile client provokes is not for the log; faults of ours are logged


class Together:
    """A transport whose small writes of one moment leave together: head and body of a reply are one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write with what else is written before the loop turns."""
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def close(self) -> None:
        """Close once everything has left."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Every connection has an app of its own."""


_config = Config(
    _nothing,
    http="httptools",
    log_config=None,
    access_log=False,
    lifespan="off",
    ws="none",
    timeout_keep_alive=IDLE_SECONDS,
)
"""One configuration serves them all."""
_config.load()


class Connection(HttpToolsProtocol):
    """One connection of a client, which may be hostile."""

    open = 0
    together = CONNECTIONS  # of one listener
    patience = HEAD_SECONDS  # for a head, from its first byte on, and for what is left of a body when it was answered

    def __init__(self, app: Asgi, state: ServerState, config: Config = _config) -> None:
        super().__init__(config, state, {})
        self.app: Any = app
        self.logger = _quiet
        self.access_log = False
        self._patience: asyncio.TimerHandle | None = None
        self._method = b""
        self._head = 0  # bytes since the last that were part of a body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, unless there are too many."""
        super().connection_made(Together(transport, self.loop))  # type: ignore[arg-type]
        Connection.open += 1
        # asyncio does this only for sockets that know their protocol by number, which those handed over do not all.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.together or Connection.open > _most():
            transport.abort()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.let_go()
        super().connection_lost(exc)

    def let_go(self) -> None:
        """It is no connection of ours any more."""
        Connection.open -= 1
        self._calm()

    def data_received(self, data: bytes) -> None:
        """Parse what has come. The parser itself keeps heads and trailers of any size."""
        self._head += len(data)
        self._unset_keepalive_if_required()
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as err:
                if self._should_upgrade():  # never where the configuration has no web sockets
                    self.handle_websocket_upgrade()
                    return
                again = self._staying() + data[err.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(again)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.send_400_response("Invalid HTTP request received.")
        if self._head > HEAD_LIMIT:
            self.transport.abort()
        elif self._patience is None and self._is_waited_for() and not self.transport.is_closing():
            self._wait()

    def _staying(self) -> bytes:
        """The head of a request that asks for another protocol, as one that does not."""
        kept = [header for header in self.headers if header[0] not in (b"connection", b"upgrade")]
        first = self._method + b" " + self.url + b" HTTP/1.1\r\n"
        return first + b"".join([name + b": " + value + b"\r\n" for name, value in kept]) + b"\r\n"

    def on_headers_complete(self) -> None:
        """A request has begun, unless it will be read again."""
        self._head = 0
        self._calm()
        self._method = self.parser.get_method()
        if self._should_upgrade() or not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        """More of its body has come."""
        self._head = 0
        super().on_body(body)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.patience, self._hurry)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _is_waited_for(self) -> bool:
        """Whether the client has its turn; uvicorn's own timer runs only until the first byte of what it says."""
        return self.cycle is None or self.cycle.response_complete

    def _hurry(self) -> None:
        self._patience = None
        if self._is_waited_for():
            self.transport.abort()


def _most() -> int:
    """How many connections all listeners together may hold of what this process can open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (soft if soft > 0 else 1 << 20) // 4
