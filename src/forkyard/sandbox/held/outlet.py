"""The way out of a running sandbox: a door on its own loopback, that this process serves."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.held.ports import free_port
from forkyard.sandbox.held.trust import ENV as TRUSTED
from forkyard.sandbox.network.authority import Authority
from forkyard.sandbox.network.door import Door
from forkyard.sandbox.network.policy import NO_NETWORK, Network
from forkyard.sandbox.network.visits import Visits

_DIRECT = "localhost,127.0.0.1,::1"


class Outlet:
    """The door of one sandbox, which remembers its network while it is stopped. "none" costs nothing."""

    def __init__(self, channel: Channel | None) -> None:
        self.network = NO_NETWORK
        self.visits = Visits()
        self._channel = channel
        self._authority = Authority()
        self._door: Door | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """The variables by which programs find the door, while there is one."""
        if self._door is None:
            return {}
        url = f"http://127.0.0.1:{self._door.port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        trusted = TRUSTED if self.network.rules else {}
        return {**dict.fromkeys(names, url), "no_proxy": _DIRECT, "NO_PROXY": _DIRECT, **trusted}

    @property
    def certificate(self) -> bytes | None:
        """Whom programs inside have to trust, because the door answers for hosts with rules; in PEM."""
        return self._authority.certificate if self._door is not None and self.network.rules else None

    @property
    def name_server(self) -> str | None:
        """Where names are resolved inside; None where the door does it."""
        return None

    async def open(self, channel: Channel) -> None:
        """The sandbox runs: let it reach its network."""
        self._channel = channel
        if self.network.mode != "none":
            await self.change(self.network)

    async def change(self, network: Network) -> None:
        """Reach another network from now on; what may not be reached any more is cut. On failure nothing is reached."""
        self.network = network
        if self._channel is None:
            return
        try:
            await self._change(self._channel, network)
        except BaseException:
            await self._shut()
            raise

    async def drained(self) -> None:
        """Wait until there is no connection any more to what the network says is waited for."""
        if self._door is not None:
            await self._door.drained()

    async def close(self) -> None:
        """The sandbox has ended: cut everything."""
        self._channel = None
        await self._shut()

    async def _change(self, channel: Channel, network: Network) -> None:
        if network.mode == "none":
            await self._without_door()
        else:
            await self._with_door(channel, network)

    async def _with_door(self, channel: Channel, network: Network) -> None:
        if self._door is not None:
            await self._door.change(network)
        else:
            self._door = Door(await free_port(channel), network, visits=self.visits, authority=self._authority)

    async def _shut(self) -> None:
        await self._without_door()

    async def _without_door(self) -> None:
        if self._door is not None:
            door, self._door = self._door, None
            await door.close()
