"""The part of the server that is about disks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from forkyard.errors import ConfigError, ForkyardError
from forkyard.sandbox import NO_NETWORK, PUBLIC
from forkyard.server.disks import branches, catalogue, commands, people, searching, shares
from forkyard.server.disks.execs import HOST, IMAGE_VARIABLE, NETWORK_VARIABLE, Execs
from forkyard.server.disks.leases import Leases
from forkyard.server.disks.sandboxes import Mounts
from forkyard.server.endpoints import Endpoint
from forkyard.server.sandboxes import attendants

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_log = logging.getLogger("forkyard.server")


@asynccontextmanager
async def lifetime(server: Server) -> AsyncIterator[None]:
    """Keeps `Leases` and `Execs`, attends to sandboxes, and says what commands over disks will miss."""
    leases = server.keep(Leases())
    execs = server.keep(configured(server, leases, os.environ))
    attendants(server).append(Mounts(server))
    looking = asyncio.create_task(tell_missing(execs))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def endpoints(server: Server) -> list[Endpoint]:
    """The rows of this part."""
    parts = (catalogue, commands, searching, shares, branches, people)
    return [row for part in parts for row in part.endpoints(server)]


def configured(server: Server, leases: Leases, environ: Mapping[str, str]) -> Execs:
    """Commands over disks as the server's environment has them. ConfigError for a network that is none."""
    mode = environ.get(NETWORK_VARIABLE) or NO_NETWORK.mode
    if mode not in (NO_NETWORK.mode, PUBLIC.mode):
        raise ConfigError(
            f"{NETWORK_VARIABLE} = {mode!r}: write 'none', or 'public' for commands that reach the internet"
        )
    network = PUBLIC if mode == PUBLIC.mode else NO_NETWORK
    return Execs(server.provider, leases, environ.get(IMAGE_VARIABLE) or HOST, network)


async def tell_missing(execs: Execs) -> None:
    """Log which tools commands over disks will miss, or that none can run."""
    try:
        missing = await execs.missing_tools()
    except ForkyardError as err:
        _log.warning("commands over disks cannot run: %s", err)
        return
    if missing:
        _log.warning(
            "commands over disks will miss %s, which the image %r lacks: install them, or name another image in %s",
            ", ".join(missing),
            execs.image,
            IMAGE_VARIABLE,
        )
