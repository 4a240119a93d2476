"""Ports of a sandbox's own loopback: listened on and connected to by its PID 1, and served here."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.held.channel import Channel

DOOR_PORT = 3128
PATIENCE = 15.0  # for a server inside that accepts slowly


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
