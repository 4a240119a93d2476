"""The application: every request gets an id and a line in the access log, and none a stack trace."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forkyard.server.bodies import GoneError
from forkyard.server.checking import answered, fault, refusal
from forkyard.server.endpoints import Endpoint, Face, Socket
from forkyard.server.envelope import ApiError
from forkyard.server.paths import Paths
from forkyard.values import new_id, one_line

if TYPE_CHECKING:
    from forkyard.server.keys import Keys

REQUEST_ID = b"x-request-id"
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_TAKEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

_LINE = "%s %s %s %s %s %d %d %.1fms"
_log = logging.getLogger("forkyard.server")
_access = logging.getLogger("forkyard.server.access")


class App:
    """Answers requests by the first face that takes them, then by web sockets and endpoints."""

    def __init__(
        self, keys: Keys, endpoints: Sequence[Endpoint], sockets: Sequence[Socket] = (), faces: Sequence[Face] = ()
    ) -> None:
        self._faces = faces
        self._sockets = Paths((socket.path, socket) for socket in sockets)
        self._endpoints = Paths(_by_path(keys, endpoints))
        paths = [*(socket.path for socket in sockets), *(endpoint.path for endpoint in endpoints)]
        self._hidden = tuple(path.partition("{token}")[0] for path in paths if "{token}" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or web socket, as ASGI gives it."""
        if scope["type"] not in ("http", "websocket"):
            return
        scope.setdefault("state", {})["request_id"] = _request_id(scope)
        visit = _Visit(scope, send, self._hidden)
        try:
            await self._answer(scope, receive, visit.send)
        except GoneError:
            visit.status = 499
        except Exception as err:  # noqa: BLE001 - a fault of ours in one request must not end the others
            await visit.fail(err, receive)
        finally:
            visit.tell()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = next((face.app for face in self._faces if face.takes(scope)), None) or self._routed(scope)
        await app(scope, receive, send)

    def _routed(self, scope: Scope) -> ASGIApp:
        found: tuple[ASGIApp, dict[str, str]] | None
        if scope["type"] == "websocket":
            found = self._sockets.find(scope["path"]) or (_close_socket, {})
        else:
            found = self._endpoints.find(scope["path"])
        if found is None:
            return refusal(
                ApiError(404, f"there is nothing at {one_line(scope['path'])[:200]}; /openapi.json tells what is")
            )
        app, scope["path_params"] = found
        return app


class _Visit:
    """What becomes of one request."""

    def __init__(self, scope: Scope, send: Send, hidden: tuple[str, ...]) -> None:
        self.status = 0
        self._hidden = hidden  # what paths begin with that go on with a token, whether or not there is such an endpoint
        self._scope = scope
        self._send = send
        self._bytes = 0
        self._started = time.monotonic()

    async def send(self, message: Message) -> None:
        """Pass a message on, with the request's id in its headers."""
        if message["type"] in _STARTS:
            self.status = message.get("status", 101)
            given = [pair for pair in message.get("headers", ()) if pair[0].lower() != REQUEST_ID]
            ours = (REQUEST_ID, self._scope["state"]["request_id"].encode())
            message = {**message, "headers": [*given, ours]}
        elif message["type"] == "websocket.close" and not self.status:
            self.status = 403
        else:
            self._bytes += len(message.get("body") or message.get("bytes") or b"")
        await self._send(message)

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Tell of a fault of ours, as far as it can still be told."""
        if self._scope["type"] == "websocket":
            _log.error("request %s failed", self._scope["state"]["request_id"], exc_info=error)
            await self.send({"type": "websocket.close", "code": 1011})
            return
        response = fault(Request(self._scope), error)
        if self.status:  # half of an answer has left: the connection is cut, so that nobody takes it for whole
            raise _CutError
        await response(self._scope, receive, self.send)

    def tell(self) -> None:
        """The line of the access log; no query, and no token, since those may be credentials."""
        scope = self._scope
        client = scope.get("client") or ("-", 0)
        method = scope.get("method", "SOCKET")
        took = (time.monotonic() - self._started) * 1000
        if _access.isEnabledFor(logging.INFO):
            line = (
                scope["state"]["request_id"],
                client[0],
                scope["state"].get("key", "-"),
                method,
                self._path(),
                self.status,
                self._bytes,
                took,
            )
            # As `_access.info`, which would look for the place in the code that calls it.
            _access.handle(logging.LogRecord(_access.name, logging.INFO, "", 0, _LINE, line, None))

    def _path(self) -> str:
        path: str = self._scope["path"]
        hidden = next((f"{before}{{token}}" for before in self._hidden if path.startswith(before)), None)
        return hidden or (path if path.isprintable() else one_line(path)).replace(" ", "%20")


class _CutError(Exception):
    """An answer cannot be brought to its end."""


def _request_id(scope: Scope) -> str:
    given: bytes = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given.decode() if _TAKEN_ID.fullmatch(given) else new_id()


def _by_path(keys: Keys, endpoints: Sequence[Endpoint]) -> Iterator[tuple[str, ASGIApp]]:
    """The endpoints of each path together: they know every method there, to tell them when one is refused."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        methods = paths.setdefault(endpoint.path, {})
        if endpoint.method in methods:
            raise ValueError(f"{endpoint.method} {endpoint.path} is in the table twice")
        methods[endpoint.method] = endpoint
    return ((path, _Methods(methods, keys)) for path, methods in paths.items())


class _Methods:
    """The endpoints of one path."""

    def __init__(self, methods: dict[str, Endpoint], keys: Keys) -> None:
        self._methods = methods
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        endpoint = self._methods.get(request.method)
        if endpoint is not None:
            response = await answered(endpoint, request, self._keys)
        else:
            allowed = ", ".join(sorted(self._methods))
            response = refusal(ApiError(405, f"{request.method} is not offered here; {allowed} is"))
            response.headers["allow"] = allowed
        await response(scope, receive, send)


async def _close_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.close", "code": 1008})
