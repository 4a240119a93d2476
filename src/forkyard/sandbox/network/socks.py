"""SOCKS 5 (RFC 1928), as far as programs use it for connections: no authentication, CONNECT, names and addresses."""

from __future__ import annotations

import asyncio
import ipaddress

from forkyard.sandbox.network.http import BadRequestError, checked_host, checked_port
from forkyard.sandbox.network.streams import Stream

VERSION = 5
_NO_AUTHENTICATION, _NOTHING_ACCEPTABLE = 0, 0xFF
_CONNECT, _IPV4, _NAME, _IPV6 = 1, 1, 3, 4
GRANTED, REFUSED, UNREACHABLE = 0, 2, 4


def reply(code: int) -> bytes:
    """The answer to a request; where the connection comes from is nobody's business inside."""
    return bytes((VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


async def read_request(client: Stream) -> tuple[str, int] | None:
    """The host and port asked for, after the version byte was read; None when the client went away.

    Raises BadRequestError.
    """
    reader = client.reader
    try:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        if _NO_AUTHENTICATION not in methods:
            await client.send(bytes((VERSION, _NOTHING_ACCEPTABLE)))
            return None
        await client.send(bytes((VERSION, _NO_AUTHENTICATION)))
        version, command, _, kind = await reader.readexactly(4)
        if version != VERSION or command != _CONNECT:
            raise BadRequestError("only connections can be had by SOCKS")
        host = await _host(reader, kind)
        port = int.from_bytes(await reader.readexactly(2), "big")
    except asyncio.IncompleteReadError:
        return None
    return checked_host(host), checked_port(port)


async def _host(reader: asyncio.StreamReader, kind: int) -> str:
    if kind == _IPV4:
        return str(ipaddress.IPv4Address(await reader.readexactly(4)))
    if kind == _IPV6:
        return str(ipaddress.IPv6Address(await reader.readexactly(16)))
    if kind != _NAME:
        raise BadRequestError("an unknown kind of address")
    name = await reader.readexactly((await reader.readexactly(1))[0])
    return name.decode("ascii", "replace")
