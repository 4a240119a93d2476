"""The application of one server: its parts, and the document that tells of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from starlette.responses import Response

from forkyard.server import parts
from forkyard.server.app import App
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.openapi import document
from forkyard.values import strict_json

if TYPE_CHECKING:
    from forkyard.server.serving import Server


def application(server: Server) -> App:
    """What answers the requests of a server, once its parts are there."""
    endpoints = parts.endpoints(server)

    @cache
    def written() -> bytes:
        return strict_json(document(endpoints)).encode()  # most servers are never asked for it, and it takes a while

    async def openapi(call: Call) -> Response:
        return Response(written(), headers={"content-type": "application/json"})

    return App(
        server.keys,
        [*endpoints, Endpoint("GET", "/openapi.json", openapi, "This document", public=True)],
        parts.sockets(server),
        parts.faces(server),
    )
