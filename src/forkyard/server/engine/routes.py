"""The engine's socket, the streams of its ports, and what there is to know before one comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from forkyard.sandbox.remote.connection import PATH
from forkyard.sandbox.remote.streams import relayed
from forkyard.server.endpoints import Call, Endpoint, Socket
from forkyard.server.engine.deeds import about
from forkyard.server.engine.session import Session
from forkyard.server.engine.streams import Streams
from forkyard.server.envelope import Answer, ApiError, error_body

if TYPE_CHECKING:
    from forkyard.server.serving import Server


class Engine(BaseModel):
    """What the server's provider is called and promises, and the version of what is spoken on its socket."""

    version: int
    provider: str
    features: list[str]


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Keep the connections that wait to be fetched."""
    streams = server.keep(Streams())
    try:
        yield
    finally:
        streams.close()


def endpoints(server: Server) -> list[Endpoint]:
    """What a client wants to know first."""

    async def tell(call: Call) -> Answer:
        return Answer(Engine(**about(server.provider)))

    summary = "What the provider `remote` finds here; a web socket at the same path speaks the sandbox protocol itself"
    return [Endpoint("GET", PATH, tell, summary, data=Engine)]


def sockets(server: Server) -> list[Socket]:
    """The engine's socket, and the streams."""
    streams = server.the(Streams)

    async def serve(socket: WebSocket) -> None:
        if await _let_in(server, socket):
            await Session(socket, server.provider, streams).serve()

    async def stream(socket: WebSocket) -> None:
        if not await _let_in(server, socket):
            return
        sock = streams.take(socket.path_params["token"])
        if sock is None:
            await socket.close(1008, "there is no such stream, or it was fetched already")
            return

        async def send(message: str | bytes) -> None:
            await (socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message))

        async def receive() -> str | bytes:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1006))
            return message.get("bytes") or message.get("text") or b""

        with suppress(WebSocketDisconnect, RuntimeError):
            await relayed(sock, send, receive)
            await socket.close()

    return [Socket(PATH, serve), Socket(f"{PATH}/streams/{{token}}", stream)]


async def _let_in(server: Server, socket: WebSocket) -> bool:
    """Accept a socket that comes with a key; others are refused as requests are."""
    given = socket.headers.get("authorization", "").removeprefix("Bearer ").strip()
    key = server.keys.find(given) if given else None
    if key is None:
        body = error_body(ApiError(401, "give an API key, as `Authorization: key-...`", "unauthorized"))
        await socket.send_denial_response(Response(body, 401, {"content-type": "application/json"}))
        return False
    socket.scope["state"]["key"] = key.id
    await socket.accept()
    return True
