"""The way out of a container: the door that all providers have, on a port of the container's own loopback."""

from __future__ import annotations

from forkyard.sandbox.local.channel import Channel
from forkyard.sandbox.local.network import Outlet, free_port
from forkyard.sandbox.network.door import Door
from forkyard.sandbox.network.policy import Network


class DoorOutlet(Outlet):
    """As that of the `local` provider, but that a public network has no interface either.

    Docker's bridge leads to this machine and its neighbours, and no address of its own pool has a container without.
    """

    async def _change(self, channel: Channel, network: Network) -> None:
        if network.mode == "none":
            await self._without_door()
        elif self._door is not None:
            await self._door.change(network)
        else:
            self._door = Door(await free_port(channel), network, visits=self.visits)
