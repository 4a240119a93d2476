"""One request passed on to a server inside a sandbox, and its answer back. The server may be hostile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpcore2
from starlette.types import Receive, Send

from forkyard.sandbox.network.streams import PIECE, tasks_of
from forkyard.server.bodies import GoneError
from forkyard.server.envelope import ApiError
from forkyard.server.ports.visit import Visit, answered_headers

IDLE_SECONDS = 600.0
_WITHOUT_BODY = (204, 304)
_CHUNKED = (b"transfer-encoding", b"chunked")
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
_TIMEOUTS = {"timeout": {"read": IDLE_SECONDS, "write": IDLE_SECONDS}}


class CutShortError(GoneError):
    """The server inside ended before its answer: the client's connection is cut, so that nobody takes it for whole."""


async def passed_on(visit: Visit, receive: Receive, send: Send, sock: socket.socket) -> None:
    """Pass one request on over `sock`, which is given up. Raises ApiError 502, and GoneError when it ends early."""
    stream = await _Stream.over(sock)
    body = _Body(visit, receive)
    try:
        async with tasks_of(_exchanged(visit, stream, body, send), body.abandoned()) as (exchange, gone):
            await asyncio.wait((exchange, gone), return_when=asyncio.FIRST_COMPLETED)
            if exchange.done():
                exchange.result()
    finally:
        await stream.aclose()


class _Body:
    """What the client sends."""

    def __init__(self, visit: Visit, receive: Receive) -> None:
        names = {name for name, _ in visit.scope["headers"]}
        self.in_chunks = b"transfer-encoding" in names
        self.is_there = self.in_chunks or b"content-length" in names
        self._receive = receive
        self._read = asyncio.Event()
        if not self.is_there:
            self._read.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._read.is_set():
            async with asyncio.timeout(IDLE_SECONDS):
                message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body"):
                self._read.set()

    async def abandoned(self) -> None:
        """Until the client has gone, once it has sent everything."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _exchanged(visit: Visit, stream: _Stream, body: _Body, send: Send) -> None:
    headers = visit.headers
    if body.in_chunks:
        headers = [*((name, value) for name, value in headers if name != b"content-length"), _CHUNKED]
    url = httpcore2.URL(scheme=b"http", host=b"localhost", port=80, target=visit.target)
    request = httpcore2.Request(
        visit.scope["method"].encode(),
        url,
        headers=[*headers, (b"connection", b"close")],
        content=body if body.is_there else None,
        extensions=_TIMEOUTS,
    )
    connection = httpcore2.AsyncHTTP11Connection(httpcore2.Origin(b"http", b"localhost", 80), stream)
    try:
        response = await connection.handle_async_request(request)
    except _FAILURES as err:
        told = "did not answer in time" if isinstance(err, httpcore2.TimeoutException) else "did not answer in HTTP"
        raise ApiError(502, f"the server in the sandbox {told}", "bad_answer") from None
    except TimeoutError:
        raise ApiError(408, f"nothing of the body came for {IDLE_SECONDS:g} seconds", "too_slow") from None
    await _answered(response, send)


async def _answered(response: httpcore2.Response, send: Send) -> None:
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in response.headers)
    headers = answered_headers(response.headers)
    if not 200 <= response.status < 600:
        raise ApiError(502, f"the server in the sandbox answers with a status of {response.status}", "bad_answer")
    if response.status in _WITHOUT_BODY or chunked:
        headers = [pair for pair in headers if pair[0] != b"content-length"]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    try:
        async for piece in response.aiter_stream():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except _FAILURES:
        raise CutShortError from None
    await send({"type": "http.response.body", "body": b""})


class _Stream(httpcore2.AsyncNetworkStream):
    """A socket, as httpcore wants it; writes wait while the other side does not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> _Stream:
        """Over a connected socket, which it owns."""
        try:
            return cls(*await asyncio.open_connection(sock=sock, limit=PIECE))
        except BaseException:
            sock.close()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes. Raises ReadError and ReadTimeout."""
        try:
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)
        except TimeoutError as err:
            raise httpcore2.ReadTimeout(str(err)) from err
        except OSError as err:
            raise httpcore2.ReadError(str(err)) from err

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send. Raises WriteError and WriteTimeout."""
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(buffer)
                await self._writer.drain()
        except TimeoutError as err:
            raise httpcore2.WriteTimeout(str(err)) from err
        except OSError as err:
            raise httpcore2.WriteError(str(err)) from err

    async def aclose(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    def get_extra_info(self, info: str) -> Any:
        """Nothing is known."""
        return None
