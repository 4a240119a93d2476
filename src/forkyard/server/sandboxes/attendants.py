"""Other parts of the server that have something to do with every sandbox's life: network, mounts, ports, processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forkyard.sandbox import Sandbox, SandboxSpec

if TYPE_CHECKING:
    from forkyard.server.sandboxes.life import Life
    from forkyard.server.sandboxes.record import Record
    from forkyard.server.sandboxes.values import CreateSandbox
    from forkyard.server.serving import Server


class Attendant:
    """One of them; every method may be left as it is. They are asked in the order they came."""

    async def accept(self, asked: CreateSandbox, name: str) -> Mapping[str, Any]:
        """What is to be kept in the record of what was asked: fields of it, as `network`. ApiError refuses it.

        Called before anything is made, and with `mounts` alone before a start that changes them.
        """
        return {}

    def spec(self, record: Record, spec: SandboxSpec) -> SandboxSpec:
        """How the sandbox of that record is made."""
        return spec

    async def starting(self, life: Life, sandbox: Sandbox) -> None:
        """It is about to be started on its own disk; an error leaves it stopped."""

    async def up(self, life: Life) -> None:
        """It runs, whether made, forked, started or resumed, and nobody was told yet. An error ends it again.

        `life.at_hand` is the sandbox.
        """

    async def down(self, life: Life) -> None:
        """It is about to be paused or stopped, or has ended, or did not come up. Raises nothing."""

    def hurry(self, life: Life) -> None:
        """It is to stop: whatever `down` waits for, it should do so no more. Raises nothing."""

    async def gone(self, life: Life) -> None:
        """It was deleted, and its record too. Raises nothing."""

    def shown(self, record: Record) -> Mapping[str, Any]:
        """Fields of the object that clients see, as `endpoints`."""
        return {}


class Attendants(list[Attendant]):
    """All of one server."""


def attendants(server: Server) -> Attendants:
    """Those of this server, to add to: before or after its sandboxes are there."""
    try:
        return server.the(Attendants)
    except LookupError:
        return server.keep(Attendants())
