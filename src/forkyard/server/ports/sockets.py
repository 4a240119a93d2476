"""A web socket passed on to a server inside a sandbox. A redirection is an answer as others: nothing follows it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from forkyard.sandbox.network.streams import tasks_of
from forkyard.server.envelope import ApiError
from forkyard.server.ports.visit import Headers, Visit, answered_headers

MESSAGE_LIMIT = 4 << 20
"""Bytes of one message out of a sandbox."""
OPEN_SECONDS = 30.0
_HANDSHAKE = frozenset(
    (b"host", b"content-length", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions",
     b"sec-websocket-protocol", b"sec-websocket-accept")
)  # fmt: skip
_TOLD = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013))


async def socket_passed_on(visit: Visit, client: WebSocket, sock: socket.socket) -> None:
    """Join a client's web socket and the server's, over `sock`, which is given up. Raises ApiError 502."""
    inside = await _connection(visit, sock)
    try:
        if not await _opened(visit, client, inside):
            return
        async with tasks_of(_in(client, inside), _out(inside, client)) as both:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        inside.transport.abort()


async def _connection(visit: Visit, sock: socket.socket) -> ClientConnection:
    offered = [Subprotocol(word) for word in visit.scope.get("subprotocols", ())]
    try:
        protocol = ClientProtocol(
            parse_uri(f"ws://{visit.host}{visit.target.decode('latin-1')}"),
            subprotocols=offered or None,
            max_size=MESSAGE_LIMIT,
        )
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(protocol, ping_interval=None), sock=sock
        )
    except BaseException as err:
        sock.close()
        if isinstance(err, WebSocketException | ValueError):
            raise ApiError(400, "this is no address of a web socket", "invalid_request") from None
        raise
    return connection


async def _opened(visit: Visit, client: WebSocket, inside: ClientConnection) -> bool:
    """Whether both sides have a web socket now; else the client was told what the server said."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in _without(visit.headers)]
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await inside.handshake(headers, None)
    except InvalidStatus as err:
        if not 200 <= err.response.status_code < 600:
            raise ApiError(502, "the server in the sandbox opens no web socket", "bad_answer") from None
        told = Response(bytes(err.response.body or b""), err.response.status_code)
        told.raw_headers = [
            *_without(
                answered_headers(
                    [(name.encode(), value.encode("latin-1")) for name, value in err.response.headers.raw_items()]
                )
            ),
            (b"content-length", b"%d" % len(told.body)),
        ]
        await client.send_denial_response(told)
        return False
    except (InvalidHandshake, WebSocketException, OSError, EOFError, TimeoutError):
        raise ApiError(502, "the server in the sandbox opens no web socket", "bad_answer") from None
    answer: Any = inside.response
    more = _without(
        answered_headers([(name.encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()])
    )
    await client.accept(inside.subprotocol, more)
    return True


async def _in(client: WebSocket, inside: ClientConnection) -> None:
    """What the client says."""
    with suppress(ConnectionClosed):
        while (message := await client.receive())["type"] == "websocket.receive":
            text = message.get("text")
            await inside.send(text if text is not None else message["bytes"])
        code = message.get("code", 1000)
        await inside.close(code if code in _TOLD or 3000 <= code < 5000 else 1000, message.get("reason") or "")


async def _out(inside: ClientConnection, client: WebSocket) -> None:
    """What the server says."""
    try:
        while True:
            message = await inside.recv()
            if isinstance(message, str):
                await client.send_text(message)
            else:
                await client.send_bytes(message)
    except ConnectionClosed as err:
        code = err.rcvd.code if err.rcvd is not None else 1011
        reason = err.rcvd.reason if err.rcvd is not None else "the sandbox's server is gone"
        with suppress(RuntimeError, WebSocketDisconnect):
            await client.close(code if code in _TOLD or 3000 <= code < 5000 else 1000, reason)
    except WebSocketDisconnect:
        return


def _without(headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0] not in _HANDSHAKE]
