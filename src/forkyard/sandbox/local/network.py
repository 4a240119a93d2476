"""What a running sandbox of the local provider reaches: through a door on its own loopback, or through slirp4netns."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.local.channel import Channel
from forkyard.sandbox.local.network_public import PublicNetwork, program
from forkyard.sandbox.network.door import Door
from forkyard.sandbox.network.policy import NO_NETWORK, PUBLIC, Network
from forkyard.sandbox.network.visits import Visits

DOOR_PORT = 3128
PATIENCE = 15.0  # for a server inside that accepts slowly
_DIRECT = "localhost,127.0.0.1,::1"


class Outlet:
    """The way out of one sandbox, which remembers its network while it is stopped. "none" costs nothing."""

    def __init__(self, channel: Channel | None) -> None:
        self.network = NO_NETWORK
        self.visits = Visits()
        self._channel = channel
        self._door: Door | None = None
        self._public: PublicNetwork | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """The variables by which programs find the door, while there is one."""
        if self._door is None:
            return {}
        url = f"http://127.0.0.1:{self._door.port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return {**dict.fromkeys(names, url), "no_proxy": _DIRECT, "NO_PROXY": _DIRECT}

    @property
    def name_server(self) -> str | None:
        """Where names are resolved inside; None where the door does it."""
        return None if self._public is None else self._public.name_server

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

    async def close(self) -> None:
        """The sandbox has ended: cut everything."""
        self._channel = None
        await self._shut()

    async def _change(self, channel: Channel, network: Network) -> None:
        whole = network == PUBLIC and program() is not None
        if not whole:
            await self._without_public()
        if whole or network.mode == "none":
            await self._without_door()
        if whole:
            self._public = self._public or await PublicNetwork.start(channel)
        elif self._door is not None:
            await self._door.change(network)
        elif network.mode != "none":
            self._door = Door(await free_port(channel), network, visits=self.visits)

    async def _shut(self) -> None:
        await self._without_door()
        await self._without_public()

    async def _without_door(self) -> None:
        if self._door is not None:
            door, self._door = self._door, None
            await door.close()

    async def _without_public(self) -> None:
        if self._public is not None:
            public, self._public = self._public, None
            await public.close()


async def free_port(channel: Channel) -> socket.socket:
    """A listening socket on a sandbox's loopback, at `DOOR_PORT` unless something inside has that; SandboxError."""
    try:
        return await open_port(channel, DOOR_PORT)
    except SandboxLost:
        raise
    except SandboxError:  # something inside has taken it
        return await open_port(channel, 0)


async def open_port(channel: Channel, port: int) -> socket.socket:
    """A listening socket on a sandbox's loopback; raises SandboxError."""
    try:
        _, fds = await channel.request("listen", port=port)
        return received_socket(fds)
    except (OSError, ValueError, OverflowError) as err:
        raise SandboxError(f"cannot listen on port {port} inside the sandbox: {err}") from err


async def open_connection(channel: Channel, port: int) -> socket.socket:
    """A connection to a port of a sandbox's loopback. Raises ConnectionError, and SandboxError of the machine."""
    try:
        _, fds = await channel.request("connect", port=port)
        sock = received_socket(fds)
    except ConnectionError as err:
        raise type(err)(err.errno, f"port {port} of the sandbox: {err.strerror}") from None
    except (OSError, ValueError) as err:
        raise SandboxError(f"cannot connect to port {port} inside the sandbox: {err}") from err
    try:
        sock.setblocking(False)
        await _connected(sock, port)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(sock: socket.socket, port: int) -> None:
    """Wait for a connection that is being made."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock, ready.set)
    try:
        async with asyncio.timeout(PATIENCE):
            await ready.wait()
    except TimeoutError:
        raise ConnectionRefusedError(f"port {port} of the sandbox did not answer within {PATIENCE:.0f} s") from None
    finally:
        loop.remove_writer(sock)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise ConnectionRefusedError(code, f"port {port} of the sandbox: {os.strerror(code)}")


def received_socket(fds: list[int]) -> socket.socket:
    """A descriptor that came out of a sandbox, as the TCP socket it has to be; ValueError otherwise."""
    with suppress(OSError):  # no socket at all
        sock = socket.socket(fileno=fds[0])
        if (sock.family, sock.type, sock.proto) == (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP):
            return sock
        sock.detach()
    os.close(fds[0])
    raise ValueError("its answer was no TCP socket")
