"""Closing the ways that lead out of the networks of a compose project: its services reach each other, and no more.

Docker's `internal` is not enough: the host answers at the gateway's address, and an Engine without a packet filter
keeps nobody in. So each container gets routes that refuse everything but its own networks, by another one that joins
its network for a moment, with a right that its services do not have.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.docker.agent import HERE
from forkyard.sandbox.docker.containers import REMOVE, Containers, mounts
from forkyard.sandbox.docker.images import UNSET

PROJECT_LABEL, SERVICE_LABEL = "com.docker.compose.project", "com.docker.compose.service"
_PROGRAM = f"import sys; sys.path.append('{HERE}/app'); from agent import agent; agent.routes.close_ways(sys.argv[1:])"
_EVERYWHERE = ("0.0.0.0/1", "128.0.0.0/1")  # narrower than a default route, wider than any network of its own
_OPENERS = frozenset({"ALL", "NET_ADMIN", "CAP_NET_ADMIN", "SYS_ADMIN", "CAP_SYS_ADMIN"})


async def close_ways(containers: Containers, container: str, networks: list[dict[str, Any]], ids: set[str]) -> None:
    """Leave a container the `networks` of its project, whose containers are `ids`.

    Raises ConfigError for one that would not be kept in by it.
    """
    found = await containers.inspect(container)
    service, mode = found["Config"]["Labels"].get(SERVICE_LABEL), found["HostConfig"]["NetworkMode"]
    if reason := _not_kept(found, networks, ids):
        raise ConfigError(f"the service {service!r} {reason}: take that from it, or ask for the network public")
    if mode.startswith("container:"):
        return  # it is closed with the other's
    joined = found["NetworkSettings"]["Networks"].values()
    gateways = sorted(f"{each['Gateway']}/32" for each in joined if each.get("Gateway"))
    await _route(containers, found, [*_EVERYWHERE, *gateways])


async def _route(containers: Containers, found: dict[str, Any], refused: list[str]) -> None:
    tools, engine = await containers.tools(), containers.engine
    body = {
        "Image": found["Image"],
        "Entrypoint": [*tools.command[:-1], _PROGRAM, *refused],
        "Cmd": [],
        "User": "0:0",
        "Env": [f"{name}=" for name in UNSET],
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {PROJECT_LABEL: found["Config"]["Labels"][PROJECT_LABEL], SERVICE_LABEL: ""},
        "HostConfig": {
            "NetworkMode": f"container:{found['Id']}",
            "CapAdd": ["NET_ADMIN"],
            "Mounts": mounts(tools),
        },
    }
    helper = (await engine.call("POST", "/containers/create", body=body))["Id"]
    try:
        await engine.call("POST", f"/containers/{helper}/start")
        ended = await engine.call("POST", f"/containers/{helper}/wait")
        if ended["StatusCode"] != 0:
            said = await engine.logs(helper, limit=500)
            raise SandboxError(f"the network of a service could not be closed: {said}")
    finally:
        await asyncio.shield(engine.call("DELETE", f"/containers/{helper}", missing_ok=True, query=REMOVE))


def _not_kept(found: dict[str, Any], networks: list[dict[str, Any]], ids: set[str]) -> str | None:
    """Why routes would not keep a container in; None when they do."""
    host, mode = found["HostConfig"], found["HostConfig"]["NetworkMode"]
    own = {network["Name"] for network in networks}
    joined = set(found["NetworkSettings"]["Networks"]) - {"none"}
    shares = mode.startswith("container:") and mode.removeprefix("container:") not in ids
    if mode == "host" or shares or joined - own:
        return f"has the network mode {mode!r}, or a network that is not the project's"
    if any(network.get("EnableIPv6") for network in networks if network["Name"] in joined):
        return "is on a network with IPv6, whose ways are not closed"
    if host.get("Privileged") or _OPENERS & set(host.get("CapAdd") or ()):
        return "may set routes itself (it is privileged, or has NET_ADMIN or SYS_ADMIN)"
    return None
