"""The endpoints of a sandbox's network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer
from forkyard.server.network.networks import Networks
from forkyard.server.network.values import NetworkPolicy
from forkyard.server.sandboxes import Sandboxes, attendants

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_PATH = "/api/sandboxes/{sandbox_id}/network"


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """See to the networks of sandboxes."""
    attendants(server).append(server.keep(Networks(server.provider)))
    yield


def endpoints(server: Server) -> list[Endpoint]:
    """What can be asked of networks."""
    networks, sandboxes = server.the(Networks), server.the(Sandboxes)

    async def get(call: Call) -> Answer:
        return Answer(networks.shown_network(sandboxes.get(call.path["sandbox_id"])))

    async def put(call: Call) -> Answer:
        return Answer(await networks.change(sandboxes.get(call.path["sandbox_id"]), call.body))

    return [
        Endpoint("GET", _PATH, get, "What a sandbox reaches", data=NetworkPolicy, errors=(404,)),
        Endpoint(
            "PUT",
            _PATH,
            put,
            "Have a running sandbox reach other hosts, from now on",
            body=NetworkPolicy,
            data=NetworkPolicy,
            errors=(404, 409, 501),
        ),
    ]
