"""Requests to hosts that have a rule: read in plain, changed, and sent on. Headers of rules are seen by no guest."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from forkyard.sandbox.network import http
from forkyard.sandbox.network.http import BadRequestError, Request
from forkyard.sandbox.network.policy import names_port
from forkyard.sandbox.network.rules import Rule
from forkyard.sandbox.network.streams import OnBytes, Stream, pump, tasks_of, while_moving

_ECHOES = (b"TRACE", b"TRACK")
_SWITCHES = b"HTTP/1.1 101 "


def altered(request: Request, rule: Rule) -> Request:
    """The request as its server gets it. Raises BadRequestError for one that would give headers of the rule away."""
    if request.method in _ECHOES:
        raise BadRequestError("a server would answer with the headers that are added to the request", 405)
    forward = rule.forwarding
    if forward is None:
        if rule.headers and not request.tls and not names_port(rule.target):
            raise BadRequestError(
                f"headers are added to requests to {request.host} in TLS alone: ask for https://{request.host}", 403
            )
        return request.with_headers(rule.headers)
    asked = http.authority(request.host, request.port, 443 if request.tls else 80)
    added = (("X-Forwarded-Host", asked), ("X-Forwarded-Proto", "https" if request.tls else "http"))
    onward = replace(request, host=forward.host, port=forward.port, tls=forward.tls, path=forward.path + request.path)
    return onward.with_headers(added).with_headers(rule.headers)


async def over_tls(plain: Stream, context: ssl.SSLContext, server_name: str | None, patience: float) -> Stream:
    """A connection in TLS from here on: to a server of that name, or as a server without one.

    Raises OSError, as ssl.SSLError is, also when that takes longer than `patience`.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=http.HEAD_LIMIT)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = await loop.start_tls(
        plain.writer.transport,
        protocol,
        context,
        server_side=server_name is None,
        server_hostname=server_name,
        ssl_handshake_timeout=patience,
    )
    if transport is None:
        raise ConnectionResetError("the connection was closed")
    protocol.connection_made(transport)
    return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop), plain)


async def is_silent(client: Stream) -> bool:
    """Whether nothing came of it that was not read yet; whatever did is lost."""
    try:
        async with asyncio.timeout(0):
            return not await client.reader.read(1)
    except TimeoutError:
        return True


async def converse(client: Stream, server: Stream, request: Request, idle: float) -> None:
    """One request and its answer; if that is a web socket, all that is said on it.

    Raises TimeoutError after `idle` seconds in which nothing moved, and BadRequestError for a body that is none.
    """
    async with while_moving(idle) as moved:
        await server.send(request.head())
        answering = _answer(client, server, moved) if request.web_socket else pump(server, client, moved)
        await _first(answering, http.send_body(request, client, server, moved))


async def _answer(client: Stream, server: Stream, moved: OnBytes) -> None:
    """Pass on an answer, and what the client says as soon as the server speaks another protocol, and not before."""
    try:
        head = await server.reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise BadRequestError("its answer is not one of HTTP", 502) from None
    moved(len(head))
    await client.send(head)
    if not head.startswith(_SWITCHES):
        await pump(server, client, moved)
        return
    async with tasks_of(pump(server, client, moved), pump(client, server, moved)) as both:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)


async def _first(answering: Coroutine[Any, Any, None], sending: Coroutine[Any, Any, None]) -> None:
    """Until the answer has ended; an error of the body's ends it as well."""
    async with tasks_of(answering, sending) as (answer, body):
        done, _ = await asyncio.wait((answer, body), return_when=asyncio.FIRST_COMPLETED)
        if body in done:
            body.result()
        await answer
