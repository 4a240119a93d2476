"""The table of endpoints: from the same rows come the routes and the OpenAPI document.

A part of the server is a module `server/<part>/routes.py` that offers some of:

    def endpoints(server: Server) -> list[Endpoint]              rows of this table
    def sockets(server: Server) -> list[Socket]                  web sockets, which see to their own credentials
    def faces(server: Server) -> list[Face]                      what is no control plane: S3, ports of sandboxes
    @asynccontextmanager
    async def lifetime(server: Server) -> AsyncIterator[None]    entered before the first request: recover what was,
                                                                 `server.keep(Registry(...))`; left after the last

Others then have it by `server.the(Registry)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from forkyard.server.envelope import Answer

if TYPE_CHECKING:
    from forkyard.server.keys import Key


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an endpoint, checked: `body` and `query` are instances of what the endpoint says, or None."""

    request: Request
    path: Mapping[str, str]  # the parameters of the path, decoded; never file paths
    body: Any
    query: Any
    key: Key | None  # None at a public endpoint alone


Handler = Callable[[Call], Awaitable[Answer | Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row: a method of a path such as "/api/disks/{id}", who answers it, and what it takes and gives.

    A path parameter named "token" is a credential, and is kept out of the access log.
    """

    method: str
    path: str
    call: Handler
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    data: Any = None  # the type of the answer's data, as an annotation; None when it has none
    success: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()  # beside 400, 401, 408, 413, 500 and 507, which come with what is said above
    public: bool = False  # asks for no key
    body_optional: bool = False  # no body at all is a body of None
    headers: tuple[str, ...] = field(default=())  # optional request headers it reads, for the document


@dataclass(frozen=True, slots=True)
class Socket:
    """A path such as "/api/engine" at which there is a web socket, and who accepts it and speaks on it."""

    path: str
    serve: Callable[[WebSocket], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One web socket, as ASGI gives it."""
        await self.serve(WebSocket(scope, receive, send))


@dataclass(frozen=True, slots=True)
class Face:
    """An ASGI application that answers the requests it says are its own, and sees to their credentials."""

    takes: Callable[[Scope], bool]
    app: ASGIApp
