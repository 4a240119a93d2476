"""One exchange with a provider: a request as it comes in, how it goes on, what comes back."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import httpcore2
import httpx2

from forkyard.gateway.decoding import REPLY_LIMIT, REQUEST_LIMIT, Inflater, read_json
from forkyard.gateway.dialects import Dialect
from forkyard.gateway.dialects.base import Body
from forkyard.gateway.headers import Headers, onward, value_of, without_keys
from forkyard.gateway.observer import Guard, LeakError
from forkyard.gateway.pool import FAILURES, Reply
from forkyard.gateway.terms import RefusedError, UpstreamError
from forkyard.gateway.upstreams import Upstream
from forkyard.model.failures import by_proxy
from forkyard.secrets import SHORTEST_SECRET

if TYPE_CHECKING:
    from forkyard.gateway.route import Route


@dataclass(frozen=True, slots=True)
class Incoming:
    """A client's request; `path` is without /v1, header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes


class Pieces(Protocol):
    """A body that comes piece by piece."""

    def __aiter__(self) -> Self:
        """Itself."""
        ...

    async def __anext__(self) -> bytes:
        """The next piece. Raises UpstreamError when the provider breaks off."""
        ...

    async def aclose(self) -> None:
        """Let go of whatever it comes from; also before its first piece."""
        ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes back to the client: whole, or piece by piece as it comes (to be closed by whoever takes it)."""

    status: int
    headers: Headers
    body: bytes | Pieces


def read_body(request: Incoming) -> Body:
    """The JSON object of a request. Raises RefusedError."""
    try:
        inflater = Inflater(value_of(request.headers, b"content-encoding"), REQUEST_LIMIT)
        body = read_json(inflater.feed(request.body))
    except ValueError as err:
        raise RefusedError(400, f"the request's body cannot be read: {err}", "invalid_body") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the request's body is not a JSON object", "invalid_body")
    return body


def written(body: Body, changes: Body, *, anew: bool = False) -> bytes | None:
    """The body with what the run decides, None for the client's own bytes; `anew` is never those."""
    changed = {name: value for name, value in changes.items() if name not in body or body[name] != value}
    if not changed and not anew:
        return None
    # ASCII, so that half surrogate pairs survive; keys stay in their order, new ones come last.
    return json.dumps(body | changed, separators=(",", ":")).encode("ascii")


async def send(
    route: Route, request: Incoming, upstream: Upstream, dialect: Dialect, content: bytes | None, *, plain: bool = False
) -> Reply:
    """Send a request on; its reply once the head is there. Raises UpstreamError."""
    own = upstream.key_headers(dialect, request.headers)
    url = upstream.url(dialect, request.path) + (f"?{request.query}" if request.query else "")
    headers = onward(request.headers, own, plain=plain, rewritten=content is not None)
    body = None if request.method == "GET" else request.body if content is None else content
    try:
        async with asyncio.timeout(route.bounds.total):
            reply = await route.gateway.pool.send(request.method, url, headers, body, route.bounds.timeouts)
    except httpx2.InvalidURL as err:
        raise RefusedError(400, f"the request's address cannot be sent on: {err}", "invalid_address") from None
    except (*FAILURES, TimeoutError) as err:
        raise failed(upstream, err) from None
    reply.headers = without_keys(reply.headers, route.gateway.keys)
    return reply


def failed(upstream: Upstream, err: Exception) -> UpstreamError:
    """What a failure below HTTP is to the client."""
    said = str(err) or type(err).__name__
    if isinstance(err, LeakError):
        return UpstreamError(400, f"{upstream.place} {said}: {_mend_leak(upstream)}", err)
    if isinstance(err, httpcore2.TimeoutException | TimeoutError):
        return UpstreamError(504, f"{upstream.place} did not answer in time", err)
    if isinstance(err, httpcore2.RemoteProtocolError | httpcore2.ReadError | ValueError):
        return UpstreamError(502, f"{upstream.place} broke off its reply: {said}", err)
    if isinstance(err, httpcore2.ProxyError):
        found = by_proxy(upstream.place, said).error
        return UpstreamError(found.status_code or 503, str(found), err)
    return UpstreamError(503, f"{upstream.place} cannot be reached: {said}", err)


def _mend_leak(upstream: Upstream) -> str:
    return (
        "the reply was passed on to nobody. If the endpoint takes no key, set "
        f"{upstream.place.key_from} to a word of fewer than {SHORTEST_SECRET} letters, as EMPTY, which is no secret; "
        "otherwise ask whoever runs it why it quotes keys, and change this one"
    )


async def read_reply(route: Route, upstream: Upstream, response: Reply) -> tuple[bytes, bytes]:
    """A reply that comes whole, as it travels and as it reads. Raises UpstreamError."""
    raw = bytearray()
    try:
        inflater = Inflater(value_of(response.headers, b"content-encoding"), REPLY_LIMIT)
        guard, plain = Guard(route.gateway.keys), bytearray()
        async with asyncio.timeout(route.bounds.total):
            async for piece in response.pieces:
                raw += piece
                read = inflater.feed(piece)
                guard.check(read)
                plain += read
    except (*FAILURES, ValueError, TimeoutError) as err:
        raise failed(upstream, err) from None
    finally:
        await response.aclose()
    return bytes(raw), bytes(plain)


async def whole(reply: Outgoing) -> Outgoing:
    """A reply with its body in one piece. Raises UpstreamError when the provider breaks off."""
    if isinstance(reply.body, bytes):
        return reply
    async with aclosing(reply.body) as pieces:
        body = b"".join([piece async for piece in pieces])
    return replace(reply, body=body)
