"""Addresses: which of them are public, which are this machine's own, and which ones a name stands for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressRange = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host name, best first; raises OSError when there are none."""

# The registries of special-purpose addresses (RFC 6890 and later); one list here, since Python's own differ by version.
NOT_PUBLIC = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        ),
    )
)  # fmt: skip
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
NOT_PUBLIC_V6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))  # in it
RESOLVERS = 16


def is_public(address: Address) -> bool:
    """Whether this is a plain address of the public network; addresses that wrap another one are not."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in NOT_PUBLIC)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    return address in PUBLIC_V6 and not any(address in block for block in NOT_PUBLIC_V6)


def is_own(address: Address) -> bool:
    """Whether this machine itself would answer at this address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing: the kernel only says where it would send from
        except OSError:
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == address


async def resolve(name: str) -> Sequence[str]:
    """The addresses this machine's own resolver knows of a name."""
    found = await asyncio.get_running_loop().run_in_executor(_resolvers(), _look_up, name)
    return list(dict.fromkeys(found))


def _look_up(name: str) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


@cache
def _resolvers() -> ThreadPoolExecutor:
    """Threads of their own: slow names of a hostile sandbox must not hold up what else this process does in threads."""
    return ThreadPoolExecutor(RESOLVERS, "forkyard-resolve")
