"""Requests of programs outside this process: read within bounds, handed to the relay, ended when the client goes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from forkyard.errors import ForkyardError
from forkyard.gateway.decoding import REQUEST_LIMIT
from forkyard.gateway.dialects import CHAT, MESSAGES, Dialect, dialect_at
from forkyard.gateway.exchange import Incoming, Outgoing
from forkyard.gateway.headers import Headers, value_of
from forkyard.gateway.relay import COUNT, relay
from forkyard.gateway.terms import ENDED, RefusedError, UpstreamError
from forkyard.values import MIB

if TYPE_CHECKING:
    from forkyard.gateway.route import Route

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

HELD_AT_ONCE = 4 * REQUEST_LIMIT
"""What the requests of one app may hold of this process's memory, from their first byte until they are answered."""

_log = logging.getLogger(__name__)


class BrokenOffError(Exception):
    """The reply cannot be brought to its end: the connection is cut, so that nobody takes it for whole."""


class _GoneError(Exception):
    """The client has gone."""


class App:
    """Serves requests to whichever route `find` names for their headers; it may raise RefusedError."""

    def __init__(self, find: Callable[[Headers], Route]) -> None:
        self._find = find
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request as ASGI gives it."""
        if scope["type"] != "http":
            return
        headers: Headers = list(scope["headers"])
        path = _without_version(scope["path"])
        try:
            route = self._find(headers)
            body = await self._body(headers, receive)
        except _GoneError:
            return
        except RefusedError as err:
            await _tell(send, _dialect(path, headers), err.status, str(err), err.code)
            return
        query = scope["query_string"].decode("latin-1")
        try:
            await _answered(route, Incoming(scope["method"], path, query, headers, body), receive, send)
        finally:
            self._held -= len(body)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size = 0
        announced = value_of(headers, b"content-length")
        try:
            while True:
                if (announced.isdigit() and int(announced) > REQUEST_LIMIT) or size > REQUEST_LIMIT:
                    raise RefusedError(413, f"the request is larger than {REQUEST_LIMIT // MIB} MiB", "too_large")
                if self._held > HELD_AT_ONCE:
                    raise RefusedError(413, "too many large requests at once", "too_large")
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                piece = message.get("body", b"")
                pieces.append(piece)
                size += len(piece)
                self._held += len(piece)
                if not message.get("more_body"):
                    return b"".join(pieces)
        except BaseException:
            self._held -= size
            raise


async def _answered(route: Route, incoming: Incoming, receive: Receive, send: Send) -> None:
    begun = asyncio.Event()

    async def begin(message: MutableMapping[str, Any]) -> None:
        begun.set()
        await send(message)

    answering = route.begin(_answer(route, incoming, begin))
    await until_gone(answering, receive)
    if answering.cancelled():
        if begun.is_set():
            raise BrokenOffError
        await _tell(send, _dialect(incoming.path, incoming.headers), 409, "this rollout has ended", ENDED)


async def until_gone(answering: asyncio.Task[None], receive: Receive) -> None:
    """Wait for an answer, and cancel it when its client goes. Raises what the answer raised."""
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.wait((answering, leaving))
    if not answering.cancelled():
        answering.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(route: Route, incoming: Incoming, send: Send) -> None:
    started = time.monotonic()
    try:
        await _relayed(route, incoming, send)
    finally:
        if route.purpose == "agent" and dialect_at(incoming.path) is not None:
            route.terms.trace.timing.model_ms += (time.monotonic() - started) * 1000


async def _relayed(route: Route, incoming: Incoming, send: Send) -> None:
    dialect = _dialect(incoming.path, incoming.headers)
    try:
        reply = await relay(route, incoming)
    except RefusedError as err:
        await _tell(send, dialect, err.status, str(err), err.code)
    except UpstreamError as err:
        await _tell(send, dialect, err.status, str(err), "upstream_error")
    except ForkyardError as err:
        await _tell(send, dialect, 400, str(err), "task_error")
    except Exception as err:  # noqa: BLE001 - a fault of ours in one request must not end the others
        _log.exception("a fault of the gateway")
        await _tell(send, dialect, 500, f"the gateway failed: {type(err).__name__}", "gateway_error")
    else:
        await _pass_on(reply, send)


async def _pass_on(reply: Outgoing, send: Send) -> None:
    start = {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
    if isinstance(reply.body, bytes):
        await send(start)
        await send({"type": "http.response.body", "body": reply.body})
        return
    async with aclosing(reply.body) as pieces:
        await send(start)
        try:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (UpstreamError, ForkyardError) as err:
            raise BrokenOffError(str(err)) from None
    await send({"type": "http.response.body", "body": b""})


async def _tell(send: Send, dialect: Dialect, status: int, message: str, code: str) -> None:
    """Tell an error in a dialect. What was refused is not worth trying again, and clients are told so."""
    final = [(b"x-should-retry", b"false")] if status < 500 else []
    await send_json(send, status, dialect.error(status, message, code), *final)


async def send_json(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Answer with a whole body of JSON."""
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """A request's body; None when it is larger than `limit` bytes, or its client goes before its end."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or len(body) > limit:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _without_version(path: str) -> str:
    """A path without /v1, which clients write once, twice or not at all."""
    while path.startswith("/v1/"):
        path = path[3:]
    return path


def _dialect(path: str, headers: Headers) -> Dialect:
    """The dialect to tell errors in."""
    if path == COUNT or value_of(headers, b"anthropic-version"):
        return MESSAGES
    return dialect_at(path) or CHAT
