"""Listeners: a server for each is a socket and a few objects, so that every rollout can have its own.

uvicorn is loaded when the first one is made: a run without a model, or with its harness in this process, needs none.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkyard.errors import SandboxError, SandboxLost
from forkyard.gateway.headers import Headers, token_of
from forkyard.gateway.serving import App, Asgi
from forkyard.gateway.terms import RefusedError
from forkyard.sandbox import Sandbox

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from forkyard.gateway.route import Route

PORT, PORTS_TRIED = 9170, 8


@dataclass(slots=True)
class Listener:
    """A socket that is served."""

    port: int
    server: asyncio.Server
    state: ServerState

    def close(self) -> None:
        """Give up the socket and cut every connection."""
        self.server.close()
        for connection in list(self.state.connections):
            transport: asyncio.Transport | None = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


async def listen(route: Route, sandbox: Sandbox, key: str | None = None) -> Listener:
    """Serve a route on a port of a sandbox's loopback, with a `key` to those alone who have it. Raises SandboxError."""

    def find(headers: Headers) -> Route:
        if key is not None and not hmac.compare_digest(token_of(headers).encode(), key.encode()):
            raise RefusedError(401, "the key is not the one that was given with this address", "invalid_api_key")
        return route

    return await serve_inside(sandbox, App(find), PORT, "the model's gateway")


async def serve_inside(sandbox: Sandbox, app: Asgi, first: int, what: str) -> Listener:
    """Serve an app on a port of a sandbox's loopback, the first that is free from `first` on. Raises SandboxError."""
    failure: SandboxError | None = None
    for port in range(first, first + PORTS_TRIED):
        try:
            sock = await sandbox.listen(port)
        except SandboxLost:
            raise
        except SandboxError as err:  # most likely the task has a service of its own there
            failure = err
        else:
            return await serve(app, sock)
    raise SandboxError(f"no port for {what}: {failure}")


async def serve(app: Asgi, sock: socket.socket) -> Listener:
    """Serve an app on a listening socket, which is owned from here on."""
    from uvicorn.server import ServerState

    from forkyard.gateway.connections import Connection

    sock.setblocking(False)
    port: int = sock.getsockname()[1]
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(app, state), sock=sock)
    return Listener(port, server, state)
