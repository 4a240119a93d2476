"""What processes that were killed have left in the Engine."""

from __future__ import annotations

import asyncio
from typing import Any

from forkyard.sandbox.docker.containers import Containers
from forkyard.sandbox.docker.images import HOME_LABEL, OWNER_LABEL
from forkyard.sandbox.docker.project import sweep_projects
from forkyard.sandbox.docker.record import Record

_KILLED = 137  # how a container ends that was stopped on purpose; without its owner, PID 1 exits with 0
_GRACE = 3.0  # seconds in which PID 1 notices that its owner is gone

Found = list[tuple[dict[str, Any], Record]]


async def sweep(containers: Containers, found: Found) -> list[str]:
    """Remove the containers and images of dead owners; what was removed.

    Stopped sandboxes with a name stay, and those that outlive their owners.
    """
    removed = await sweep_projects(containers)
    for container, record in found:
        if record.survives:
            continue
        if owner_is_dead(containers, container) and await _is_left_over(containers, container["Id"], record):
            await containers.remove(container["Id"], record)
            await containers.drop_image(container["ImageID"])
            removed.append(f"removed the container {container['Id'][:12]} of a sandbox whose owner is gone")
    filters = {"label": [f"{HOME_LABEL}={containers.home_id}", OWNER_LABEL], "dangling": ["true"]}
    for image in await containers.engine.call("GET", "/images/json", query={"filters": filters}):
        if owner_is_dead(containers, image) and await containers.drop_image(image["Id"]):
            removed.append(f"removed the image {image['Id'][7:19]}, from which forks were made and whose owner is gone")
    for owner in containers.owners.dead():
        containers.owners.forget(owner)
    return removed


def owner_is_dead(containers: Containers, labelled: dict[str, Any]) -> bool:
    """Whether the process that made a container or an image has ended."""
    owner = labelled["Labels"].get(OWNER_LABEL)
    return bool(owner) and containers.owners.is_dead(owner)


async def _is_left_over(containers: Containers, container: str, record: Record) -> bool:
    """Whether nobody runs a container any more, and it was not put aside by its name."""
    if not await has_ended(containers, container):
        return False
    found = await containers.engine.call("GET", f"/containers/{container}/json", missing_ok=True)
    return found is not None and not (record.name is not None and found["State"]["ExitCode"] == _KILLED)


async def has_ended(containers: Containers, container: str) -> bool:
    """Whether a container whose owner is dead ends as well; else somebody else opened and started it, and is alive."""
    try:
        async with asyncio.timeout(_GRACE):
            await containers.engine.call("POST", f"/containers/{container}/wait", missing_ok=True)
    except TimeoutError:
        return False
    return True
