"""The way out of a sandbox of the local provider: the door, or for the whole public network an interface."""

from __future__ import annotations

from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.held.outlet import Outlet
from forkyard.sandbox.local.network_public import PublicNetwork, program
from forkyard.sandbox.network.policy import PUBLIC, Network


class LocalOutlet(Outlet):
    """A door, or slirp4netns where it is installed and nothing is forbidden."""

    def __init__(self, channel: Channel | None) -> None:
        super().__init__(channel)
        self._public: PublicNetwork | None = None

    @property
    def name_server(self) -> str | None:
        """Where names are resolved inside; None where the door does it."""
        return None if self._public is None else self._public.name_server

    async def _change(self, channel: Channel, network: Network) -> None:
        whole = network == PUBLIC and program() is not None
        if not whole:
            await self._without_public()
        if whole or network.mode == "none":
            await self._without_door()
        if whole:
            self._public = self._public or await PublicNetwork.start(channel)
        elif network.mode != "none":
            await self._with_door(channel, network)

    async def _shut(self) -> None:
        await super()._shut()
        await self._without_public()

    async def _without_public(self) -> None:
        if self._public is not None:
            public, self._public = self._public, None
            await public.close()
