"""Web sockets as an application has them, over real connections: the handshake, messages, ends, and what is hostile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.server import ServerState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from forkyard.server.listening import FrontConnection, _config
from forkyard.server.websocket import HELD, MESSAGE_LIMIT, WebSocketConnection

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
Serve = Callable[[WebSocket], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[tuple[int, ServerState]]:
    """The port of a server whose web sockets are all `serve`'s, and what it holds of them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await serve(WebSocket(scope, receive, send))

    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: FrontConnection(app, state, _config(app)), "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], state
    finally:
        listener.close()
        while state.connections or state.tasks:
            for connection in list(state.connections):
                connection.transport.abort()
            await asyncio.sleep(0)


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await socket.send({**message, "type": "websocket.send"})
    except WebSocketDisconnect:
        return


def frame(opcode: int, data: bytes, *, masked: bool = True) -> bytes:
    """A frame of a client; its mask is of zeros."""
    mask = 0x80 if masked else 0
    size = bytes([mask | len(data)]) if len(data) < 126 else bytes([mask | 127]) + struct.pack(">Q", len(data))
    return bytes([0x80 | opcode]) + size + (bytes(4) if masked else b"") + data


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A web socket in bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    about = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    writer.write(f"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n{about}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ") and b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # as RFC 6455 has it
    return reader, writer


async def test_messages_come_whole_in_order_and_as_they_are() -> None:
    async with served(echo) as (port, _), connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
        for said in ("héllo", b"\0\xff", "", b"", "x" * 100_000):
            await client.send(said)
            assert await client.recv() == said
        await client.send(["in ", "several ", "pieces"])
        assert await client.recv() == "in several pieces"
        await (await client.ping())


async def test_an_application_knows_what_it_was_asked_and_offers_a_protocol() -> None:
    seen = []

    async def serve(socket: WebSocket) -> None:
        scope = socket.scope
        seen.append((scope["type"], scope["path"], scope["query_string"], scope["subprotocols"], "method" in scope))
        await socket.accept("b", headers=[(b"x-more", b"1")])
        await socket.close(3000, "enough")

    async with served(serve) as (port, _):
        url = f"ws://127.0.0.1:{port}/a%20b?c=d"
        async with connect(url, proxy=None, subprotocols=["a", "b"]) as client:  # type: ignore[list-item]
            assert (client.subprotocol, client.response and client.response.headers["x-more"]) == ("b", "1")
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (3000, "enough")
    assert seen == [("websocket", "/a b", b"c=d", ["a", "b"], False)]


async def test_a_client_that_closes_is_answered_and_told_of() -> None:
    told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        message = await socket.receive()
        told.set_result((message["code"], message["reason"]))
        with pytest.raises(WebSocketDisconnect):
            await socket.send_text("too late")

    async with served(serve) as (port, _):
        async with connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
            await client.close(4000, "bye")
            assert client.close_code == 4000
        assert await told == (4000, "bye")


@pytest.mark.parametrize(
    "changed",
    [
        ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 12"),
        ("Sec-WebSocket-Version: 13\r\n", ""),
        (f"Sec-WebSocket-Key: {KEY}\r\n", ""),
        (KEY, "c2hvcnQ="),
        (KEY, "no base64!"),
        (f"Sec-WebSocket-Key: {KEY}\r\n", f"Sec-WebSocket-Key: {KEY}\r\n" * 2),
        ("GET /", "POST /"),
        ("HTTP/1.1", "HTTP/1.0"),
    ],
)
async def test_what_is_no_handshake_is_refused_and_starts_nothing(changed: tuple[str, str]) -> None:
    async def serve(socket: WebSocket) -> None:
        raise AssertionError

    about = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    async with served(serve) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nHost: x\r\n{about}\r\n".replace(*changed).encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(1, b"\xff"), 1007),
        (frame(1, b"a", masked=False), 1002),
        (frame(0, b"goes on with nothing"), 1002),
        (frame(3, b"no such kind"), 1002),
        (frame(2, bytes(MESSAGE_LIMIT + 1))[:14], 1009),
    ],
)
async def test_a_frame_that_cannot_be_ends_the_socket_with_a_word(said: bytes, code: int) -> None:
    async with served(echo) as (port, _):
        reader, writer = await opened(port)
        writer.write(said)
        answer = await reader.read()
        assert answer[0] == 0x88 and int.from_bytes(answer[2:4], "big") == code
        writer.close()


async def test_what_nobody_takes_is_read_no_further_and_lost_never() -> None:
    gate = asyncio.Event()
    count, piece, taken = 100, bytes(60_000), 0

    async def serve(socket: WebSocket) -> None:
        nonlocal taken
        await socket.accept()
        await gate.wait()
        while taken < count:
            assert await socket.receive_bytes() == piece
            taken += 1
        await socket.close()

    async with served(serve) as (port, state):
        reader, writer = await opened(port)
        (connection,) = (each for each in state.connections if isinstance(each, WebSocketConnection))
        writer.write(frame(2, piece) * count)
        while not connection._paused:
            await asyncio.sleep(0)
        assert HELD < connection._held < HELD + (512 << 10)  # the loop reads at most 256 KiB at once
        gate.set()
        assert (await reader.readexactly(4))[0] == 0x88
        assert taken == count
        writer.close()


async def test_a_fault_of_the_application_is_told_as_far_as_it_can_be(caplog: pytest.LogCaptureFixture) -> None:
    async def before(socket: WebSocket) -> None:
        raise RuntimeError("the secret of the house")

    async def after(socket: WebSocket) -> None:
        await socket.accept()
        raise RuntimeError("the secret of the house")

    async def two_headers_in_one(socket: WebSocket) -> None:
        await socket.accept(headers=[(b"x", b"1\r\nset-cookie: a=b")])

    for serve in (before, two_headers_in_one):
        async with served(serve) as (port, _):
            with pytest.raises(InvalidStatus) as caught:
                await connect(f"ws://127.0.0.1:{port}/", proxy=None).__aenter__()
            assert (caught.value.response.status_code, caught.value.response.body) == (500, b"")
    async with served(after) as (port, _):
        reader, writer = await opened(port)
        assert await reader.read() == b""
        writer.close()
    assert caplog.text.count("the secret of the house") >= 2


async def test_a_server_that_ends_says_so() -> None:
    async with served(echo) as (port, state), connect(f"ws://127.0.0.1:{port}/", proxy=None) as client:
        await client.send("there")
        assert await client.recv() == "there"
        for connection in list(state.connections):
            connection.shutdown()
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1012
