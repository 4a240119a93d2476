"""The application of one server: its parts, and the document that tells of them."""

from __future__ import annotations

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
    text = strict_json(document(endpoints)).encode()

    async def openapi(call: Call) -> Response:
        return Response(text, headers={"content-type": "application/json"})

    return App(
        server.keys,
        [*endpoints, Endpoint("GET", "/openapi.json", openapi, "This document", public=True)],
        parts.sockets(server),
        parts.faces(server),
    )
