"""What answers at the host names of ports: whoever may come in is led to the sandbox, which is woken if need be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from forkyard.errors import SandboxError, SandboxLost
from forkyard.server.checking import refusal
from forkyard.server.envelope import ApiError
from forkyard.server.ports.credentials import COOKIE, Given, given_in
from forkyard.server.ports.names import label_of, port_of
from forkyard.server.ports.passing import passed_on
from forkyard.server.ports.sockets import socket_passed_on
from forkyard.server.ports.tokens import PortToken, PortTokens
from forkyard.server.ports.visit import Visit, address_of
from forkyard.server.sandboxes import Life, Phase, Sandboxes

if TYPE_CHECKING:
    import socket

    from forkyard.server.serving import Server

AT_ONCE = 256
"""Requests and web sockets of one sandbox."""
WAKE_SECONDS = 60.0
_NOBODY = ApiError(
    404, "no port is reached by this name: expose it, or send a token for it as X-Archil-Token", "not_found"
)


class PortsFace:
    """An ASGI application for every name in the server's zone."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sandboxes = server.the(Sandboxes)
        self._tokens = server.the(PortTokens)
        self._open: Counter[str] = Counter()

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for a name in the zone."""
        return self._label(scope) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or web socket."""
        try:
            await self._admitted(scope, receive, send)
        except ApiError as err:
            response = refusal(err)
            if scope["type"] == "http":
                await response(scope, receive, send)
            else:
                await WebSocket(scope, receive, send).send_denial_response(response)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        life, port = self._meant(scope)
        given = given_in(HTTPConnection(scope))
        if port not in life.record.ports:
            token = self._token(life, port, given)
            if given.by_query and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
                await _with_cookie(scope, given, token)(scope, receive, send)
                return
        with self._place(life):
            sock = await self._connection(life, port)
            visit = Visit(scope, given, self._server.keys)
            if scope["type"] == "http":
                await passed_on(visit, receive, send, sock)
            else:
                await socket_passed_on(visit, WebSocket(scope, receive, send), sock)

    def _label(self, scope: Scope) -> str | None:
        host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return label_of(host.decode("latin-1"), self._server.zone)

    def _meant(self, scope: Scope) -> tuple[Life, int]:
        meant = port_of(self._label(scope) or "")
        if meant is None or not self._sandboxes.has(meant[1]):
            raise _NOBODY
        return self._sandboxes.get(meant[1]), meant[0]

    def _token(self, life: Life, port: int, given: Given) -> PortToken:
        if given.text is None:
            raise _NOBODY
        token = self._tokens.find(life.id, port, given.text)
        if token is None:
            raise ApiError(401, "this token does not open this port (any more): make another", "unauthorized")
        return token

    @contextmanager
    def _place(self, life: Life) -> Iterator[None]:
        if self._open[life.id] >= AT_ONCE:
            raise ApiError(503, f"{AT_ONCE} requests to this sandbox are under way", retry_after=1)
        self._open[life.id] += 1
        try:
            yield
        finally:
            self._open[life.id] -= 1
            if not self._open[life.id]:
                del self._open[life.id]

    async def _connection(self, life: Life, port: int) -> socket.socket:
        """A connection to the port of a sandbox that runs, or does so soon. Raises ApiError."""
        if life.record.phase is not Phase.RUNNING:
            try:
                async with asyncio.timeout(WAKE_SECONDS):
                    await life.wake()
            except TimeoutError:
                raise ApiError(503, "the sandbox does not run yet: come again", retry_after=5) from None
        try:
            return await life.sandbox.connect(port)
        except ConnectionError:
            raise ApiError(502, f"nothing listens at port {port} of the sandbox's loopback", "not_listening") from None
        except SandboxLost as err:
            await life.lost(str(err))
            raise ApiError(502, "the sandbox has ended: come again, and it is started", "sandbox_ended") from None
        except SandboxError as err:
            raise ApiError(502, f"port {port} of the sandbox cannot be reached: {err}") from None


def _with_cookie(scope: Scope, given: Given, token: PortToken) -> Response:
    """The same address without the token, which the browser keeps for this host alone, out of reach of its scripts."""
    where = address_of(scope, given)
    response = RedirectResponse(where, 303, {"cache-control": "no-store", "referrer-policy": "no-referrer"})
    response.set_cookie(
        COOKIE,
        given.text or "",
        expires=None if token.expires is None else _http_date(token.expires),
        path="/",
        secure=scope["scheme"] == "https",
        httponly=True,
        samesite="lax",
    )
    return response


def _http_date(seconds: float) -> str:
    from email.utils import formatdate

    return formatdate(seconds, usegmt=True)
