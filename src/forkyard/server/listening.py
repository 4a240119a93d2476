"""The listening port: one for the control plane, S3, web sockets and the proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from forkyard.errors import ConfigError
from forkyard.gateway.connections import IDLE_SECONDS, Connection
from forkyard.gateway.serving import Asgi
from forkyard.server.address import Address
from forkyard.server.hosts import VENDOR_HOSTS, is_vendor_host
from forkyard.server.main import application
from forkyard.server.outward import Outward, proxy_password
from forkyard.server.proxy import Door, Ways
from forkyard.server.running import Running, forget_running, note_running
from forkyard.server.serving import Server
from forkyard.server.tls import given_context, is_made_out_to, own_context
from forkyard.server.websocket import WebSocketConnection

_LOOK_AGAIN = 0.01
_LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Listening:
    """How to listen. `certificate` and `key` are files; without them TLS is spoken with a certificate of our CA."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    certificate: Path | None = None
    key: Path | None = None
    mapped: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # hosts the proxy hands to an upstream
    grace: float = 10.0  # seconds for what is under way, once it stops


class FrontConnection(Connection):
    """A connection of the server: as one of the gateway, and it may become a web socket."""

    together = 1 << 16

    def handle_websocket_upgrade(self) -> None:
        """From here on it is another's: not uvicorn's, which writes the request out to parse it again."""
        url = httptools.parse_url(self.url)  # one that is none is answered as any other nonsense
        path = url.path or b"/"
        where = {"path": unquote(path.decode("latin-1")), "raw_path": path, "query_string": url.query or b""}
        self.connections.discard(self)
        self.let_go()
        socket = WebSocketConnection(self.app, self.server_state, {**self.scope, **where})
        self.transport.set_protocol(socket)
        socket.connection_made(self.transport)


@asynccontextmanager
async def listening(server: Server, how: Listening) -> AsyncIterator[Address]:
    """Serve until it is left: then nothing new is accepted, what is under way has some seconds, and the rest is cut.

    Raises ConfigError for a port that cannot be had and certificates that are none.
    """
    app = application(server)
    sock = _socket(how)
    async with AsyncExitStack() as stack:
        stack.callback(sock.close)
        port: int = sock.getsockname()[1]
        address = server.address = Address(_reachable(how.host), port, how.tls)
        zone = (server.zone, f"*.{server.zone}")
        own = own_context(server.home, [*VENDOR_HOSTS, *how.mapped, *_LOCAL, *zone, address.host])
        state = ServerState()
        config = _config(app)
        direct = frozenset((host, port) for host in {*_LOCAL, how.host, server.zone})
        ways = Ways(
            serve=lambda: FrontConnection(app, state, config),
            context=own,
            direct=direct,
            tls=how.tls,
            zone=server.zone,
            mapped=how.mapped,
            outward=Outward(proxy_password(server.home), direct),
        )
        listener = await asyncio.get_running_loop().create_server(
            lambda: Door(ways), sock=sock, ssl=_context(how, own, ways)
        )
        stack.push_async_callback(_stopped, listener, state, ways, how.grace)
        note_running(server.home, Running(address, tuple(how.mapped)))
        stack.callback(forget_running, server.home)
        yield address


def _socket(how: Listening) -> socket.socket:
    family = socket.AF_INET6 if ":" in how.host else socket.AF_INET
    try:
        sock = socket.create_server((how.host, how.port), family=family, backlog=1024)
    except OSError as err:
        told = err.strerror or str(err)
        raise ConfigError(f"{how.host}:{how.port} cannot be listened on ({told}): choose --host and --port") from None
    sock.setblocking(False)
    return sock


def _reachable(host: str) -> str:
    """The address clients on this machine go to."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _config(app: Asgi) -> Config:
    config = Config(
        app,
        http="httptools",
        ws=WebSocketConnection,  # that there are some; `FrontConnection` makes them
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
    )
    config.load()
    return config


def _context(how: Listening, own: ssl.SSLContext, ways: Ways) -> ssl.SSLContext | None:
    """The context of the port itself: a certificate of the user's is for all names but the vendor's and mapped ones,
    and but for those of ports unless it has a wildcard of their zone."""
    if not how.tls:
        return None
    if how.certificate is None or how.key is None:
        own.sni_callback = ways.note_name
        return own
    given = given_context(how.certificate, how.key)
    covers_zone = is_made_out_to(how.certificate, f"*.{ways.zone}")

    def choose(tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        ways.note_name(tls, name, context)
        host = (name or "").lower()
        ours = host in how.mapped or (ways.stands_for(host) and (is_vendor_host(host) or not covers_zone))
        if ours:
            tls.context = own

    given.sni_callback = choose
    return given


async def _stopped(listener: asyncio.Server, state: ServerState, ways: Ways, grace: float) -> None:
    listener.close()
    ways.shut()
    for connection in list(state.connections):
        connection.shutdown()
    until = time.monotonic() + grace
    while (state.connections or state.tasks) and time.monotonic() < until:  # noqa: ASYNC110 - uvicorn has no event
        await asyncio.sleep(_LOOK_AGAIN)
    await _cut(state)
    await ways.close()


async def _cut(state: ServerState) -> None:
    for connection in list(state.connections):
        if (transport := getattr(connection, "transport", None)) is not None:
            transport.abort()
    tasks = list(state.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
