"""A network interface for a sandbox, by slirp4netns: every public address, and none that is the host's or private."""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.inside import PLACE
from forkyard.sandbox.inside.kernel import NEWNET, NEWUSER
from forkyard.sandbox.local.network_filter import attach_filter, packet_filter
from forkyard.sandbox.network.addresses import NOT_PUBLIC, NOT_PUBLIC_V6, PUBLIC_V6, AddressRange

PATIENCE = 15.0
_INTERFACE = "tap0"
_NAME_SERVER = "10.0.2.3"  # slirp4netns answers there, from what this machine's own resolver knows
_ITS_NETWORK = ipaddress.IPv4Network("10.0.2.0/24")
_BESIDE_PUBLIC_V6 = tuple(map(ipaddress.IPv6Network, ("::/3", "4000::/2", "8000::/1")))
_REFUSES = 0x0200  # the flag of a route that leads nowhere
_ASK_KIND = 0xB703  # ioctl NS_GET_NSTYPE
_START = (
    "import sys, json; sys.path.append(sys.argv[1]); from inside import routes; routes.main(*json.loads(sys.argv[2]))"
)


def program() -> str | None:
    """slirp4netns, where it is installed and may be used."""
    return shutil.which("slirp4netns") if os.access("/dev/net/tun", os.R_OK | os.W_OK) else None


class PublicNetwork:
    """A running slirp4netns. It ends with `close`, and with this process however that ends: it watches a pipe."""

    name_server = _NAME_SERVER

    def __init__(self, process: subprocess.Popen[bytes], alive: int) -> None:
        self._process = process
        self._alive = alive

    @classmethod
    async def start(cls, channel: Channel) -> PublicNetwork:
        """Give a sandbox its interface; raises SandboxError."""
        user, net = await _namespaces(channel)
        try:
            return await cls._attach(user, net)
        finally:
            os.close(user)
            os.close(net)

    @classmethod
    async def _attach(cls, user: int, net: int) -> PublicNetwork:
        watched, alive = os.pipe()
        ready, told = os.pipe()
        fds = [user, net, watched, told]
        try:
            ipv6 = reaches_ipv6()
            closed = _closed_ways(ipv6)
            arguments = json.dumps([user, net, list(map(str, closed)), _command(net, watched, told, ipv6)])
            process = subprocess.Popen(  # noqa: ASYNC220 - a few milliseconds, once for a sandbox that asks for it
                [sys.executable, "-I", "-S", "-c", _START, PLACE, arguments],
                pass_fds=fds,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a guest can make it talk without end
                start_new_session=True,
            )
        except BaseException:
            os.close(alive)
            os.close(ready)
            raise
        finally:
            os.close(watched)
            os.close(told)
        network = cls(process, alive)
        try:
            await _until_ready(process, ready)
            await asyncio.to_thread(_keep_in, process.pid, closed, ipv6)
        except BaseException:
            await network.close()
            raise
        return network

    async def close(self) -> None:
        """End it; the interface and every connection go with it."""
        os.close(self._alive)
        self._process.kill()
        await asyncio.shield(asyncio.to_thread(self._process.wait))


async def _until_ready(process: subprocess.Popen[bytes], ready: int) -> None:
    waiting = asyncio.ensure_future(asyncio.to_thread(_read_and_close, ready))
    try:
        said = await asyncio.wait_for(asyncio.shield(waiting), PATIENCE)
    except BaseException as err:
        process.kill()  # which ends the wait as well
        await asyncio.wait([waiting])
        if isinstance(err, TimeoutError):
            raise SandboxError(f"slirp4netns was not ready within {PATIENCE:.0f} s") from None
        raise
    if not said:
        code = await asyncio.to_thread(process.wait)
        reason = "the sandbox's routes could not be set" if code == 3 else f"slirp4netns ended with {code}"
        raise SandboxError(f"no public network could be had: {reason}")


def _read_and_close(fd: int) -> bytes:
    try:
        return os.read(fd, 1)
    finally:
        os.close(fd)


def _command(net: int, watched: int, told: int, ipv6: bool) -> list[str]:
    return [
        program() or "slirp4netns",
        "--configure",
        "--disable-host-loopback",
        "--enable-sandbox",
        "--enable-seccomp",
        *(["--enable-ipv6"] if ipv6 else []),
        f"--exit-fd={watched}",
        f"--ready-fd={told}",
        "--netns-type=path",
        f"/proc/self/fd/{net}",
        _INTERFACE,
    ]


def _keep_in(pid: int, closed: list[AddressRange], ipv6: bool) -> None:
    try:
        attach_filter(pid, packet_filter(closed, [ipaddress.IPv4Address(_NAME_SERVER)], ipv6=ipv6))
    except OSError as err:
        raise SandboxError(f"no public network could be had: its interface takes no filter ({err})") from err


def _closed_ways(ipv6: bool) -> list[AddressRange]:
    """The ranges that are not public, and this machine's own addresses, which a firewall may keep from the public."""
    own = [address for address in map(ipaddress.IPv4Address, own_addresses()) if not _is_inside_anyway(address)]
    closed: list[AddressRange] = [*NOT_PUBLIC, *map(ipaddress.IPv4Network, own)]
    if ipv6:
        own_v6 = [block for block in map(ipaddress.IPv6Network, own_addresses_v6()) if block.subnet_of(PUBLIC_V6)]
        closed += [*_BESIDE_PUBLIC_V6, *NOT_PUBLIC_V6, *own_v6]
    return closed


def _is_inside_anyway(address: ipaddress.IPv4Address) -> bool:
    """Whether an address means something else inside."""
    return address.is_loopback or address in _ITS_NETWORK


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine."""
    return sorted(set(re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", _net_table("fib_trie"))))


def own_addresses_v6() -> list[str]:
    """The IPv6 addresses of this machine."""
    return sorted({_written(line.split()[0]) for line in _net_table("if_inet6").splitlines()})


def reaches_ipv6() -> bool:
    """Whether this machine has a way to any public IPv6 address."""
    for line in _net_table("ipv6_route").splitlines():
        target, length, *_, flags, _ = line.split()
        leads = ipaddress.IPv6Network(f"{_written(target)}/{int(length, 16)}").overlaps(PUBLIC_V6)
        if leads and not int(flags, 16) & _REFUSES:
            return True
    return False


def _net_table(name: str) -> str:
    table = Path("/proc/net", name)
    return table.read_text() if table.exists() else ""


def _written(digits: str) -> str:
    return str(ipaddress.IPv6Address(int(digits, 16)))


async def _namespaces(channel: Channel) -> tuple[int, int]:
    """Descriptors of a sandbox's user and network namespaces."""
    try:
        _, fds = await channel.request("namespaces")
    except SandboxLost:
        raise
    except (OSError, ValueError) as err:
        raise SandboxError(f"the sandbox's namespaces cannot be had: {err}") from err
    if [_kind(fd) for fd in fds] == [NEWUSER, NEWNET]:
        return fds[0], fds[1]
    for fd in fds:
        os.close(fd)
    raise SandboxError("the sandbox's namespaces cannot be had: its answer was something else")


def _kind(fd: int) -> int | None:
    """What namespace a descriptor is of, if of any but this process's own network."""
    with suppress(OSError):
        if os.fstat(fd).st_ino != Path("/proc/self/ns/net").stat().st_ino:
            return fcntl.ioctl(fd, _ASK_KIND)
    return None
