"""POST /api/sandboxes/{id}/connections, and the sockets it leads to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.websockets import WebSocket

from forkyard.sandbox import Feature
from forkyard.server.endpoints import Call, Endpoint, Socket
from forkyard.server.envelope import Answer, ApiError, error_body, not_here
from forkyard.server.processes.conversation import conversed
from forkyard.server.processes.registry import Processes
from forkyard.server.processes.tickets import Tickets
from forkyard.server.processes.values import Connection
from forkyard.server.sandboxes import Life, Sandboxes, attendants

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_PATH = "/api/processes"


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Look after the processes that are started."""
    processes = server.keep(Processes())
    attendants(server).append(processes)
    server.keep(Tickets())
    try:
        yield
    finally:
        await processes.close()


def endpoints(server: Server) -> list[Endpoint]:
    """Where a process socket is asked for."""

    async def connect(call: Call) -> Answer:
        life = server.the(Sandboxes).get(call.path["sandbox_id"])
        if Feature.PROCESSES not in server.provider.features:
            raise not_here(f"processes over sockets with the provider {server.provider.name}")
        _ = life.sandbox  # it runs, or that is the answer
        assert call.key is not None
        ticket, until = server.the(Tickets).sell(life.id, call.key.id)
        url = f"ws{server.origin(call.request).removeprefix('http')}{_PATH}/{ticket}"
        return Answer(Connection(url=url, expires_at=datetime.fromtimestamp(until, UTC)))

    return [
        Endpoint(
            "POST",
            "/api/sandboxes/{sandbox_id}/connections",
            connect,
            "Get the address of a web socket for one process, or for one word to it",
            data=Connection,
            errors=(404, 409),
        )
    ]


def sockets(server: Server) -> list[Socket]:
    """The process socket."""

    async def serve(socket: WebSocket) -> None:
        try:
            life = _admitted(server, socket.path_params["token"])
        except ApiError as err:
            response = Response(error_body(err), err.status, {"content-type": "application/json"})
            await socket.send_denial_response(response)
            return
        life.connected()
        try:
            await socket.accept()
            await conversed(socket, server.the(Processes).of(life))
        finally:
            life.disconnected()

    return [Socket(f"{_PATH}/{{token}}", serve)]


def _admitted(server: Server, ticket: str) -> Life:
    """The sandbox that a ticket leads to. Raises ApiError for one that is no good (any more)."""
    taken = server.the(Tickets).take(ticket)
    if taken is None or server.keys.get(taken[1]) is None:
        raise ApiError(401, "this address is good for one socket, and for a minute: ask for another", "unauthorized")
    return server.the(Sandboxes).get(taken[0])
