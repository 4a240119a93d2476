"""IPv6 out of a sandbox: what is public or listed is reached, and no spelling of an address leads anywhere else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from forkyard.sandbox import PUBLIC, Network, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.network_public import own_addresses_v6, program, reaches_ipv6
from tests.support.elsewhere import HERE_V6, PLACE_V6, PRIVATE_V6, SAYS, elsewhere
from tests.support.web import Web

needs_slirp = pytest.mark.skipif(program() is None, reason="slirp4netns is not installed (apt-get install slirp4netns)")
HERE, THERE, HIDDEN = HERE_V6, PLACE_V6, PRIVATE_V6


@asynccontextmanager
async def box_on(local: LocalProvider, network: Network) -> AsyncIterator[Sandbox]:
    box = await local.create(SandboxSpec(network=network))
    try:
        yield box
    finally:
        await box.close()


@asynccontextmanager
async def heard_at_every_address() -> AsyncIterator[tuple[Web, int]]:
    """A server on the machine itself, at whatever address of its own, of both families."""
    web = Web()
    with socket.socket(socket.AF_INET6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
        server = await asyncio.start_server(web, sock=sock)
        try:
            yield web, sock.getsockname()[1]
        finally:
            server.close()


async def get(box: Sandbox, url: str, *options: str) -> str:
    return (await box.run(["curl", "-sS", "-g", "-m", "20", *options, url], timeout=60)).stdout


SPELLINGS = (
    "::1", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:7f00:1::1", "2001::7f00:1", "fe80::1", "fec0::1", "fd00::2",
    "ff02::1", "ff0e::1", "::ffff:0:127.0.0.1", "100::1", "5f00::1",
)  # fmt: skip


async def test_no_spelling_of_an_address_leads_through_the_door_to_the_machine(local: LocalProvider) -> None:
    async with heard_at_every_address() as (web, port):
        both = Network("allowlist", ("example.org", f"localhost:{port}")), Network("public", block=("example.org",))
        for network in both:
            async with box_on(local, network) as box:
                for address in (*SPELLINGS, *own_addresses_v6()):
                    for options in ((), ("--proxytunnel",)):
                        said = await box.run(
                            ["curl", "-g", "-v", "--noproxy", "", *options, f"http://[{address}]:{port}/"], timeout=60
                        )
                        assert " 403 " in said.stderr, f"{address}: {said.stderr}"
                said = await box.run(["curl", "-sS", "--noproxy", "", f"http://localhost:{port}/"], timeout=60)
                assert "not a public one" in said.stdout
        assert web.connections == 0


async def test_an_address_on_the_list_is_reached_and_its_neighbour_is_not(local: LocalProvider) -> None:
    async with elsewhere(ipv6=True):
        await listed_and_not(local)


async def listed_and_not(local: LocalProvider) -> None:
    for entry, url in (
        (THERE, f"http://[{THERE}]/"),
        ("2600:f0f0::/32", f"http://[{THERE}]/"),
        (f"[{HIDDEN}]:80", f"http://[{HIDDEN}]/"),
    ):
        async with box_on(local, Network("allowlist", (entry,))) as box:
            assert await get(box, url) == SAYS
            refused = HIDDEN if THERE in url else THERE
            assert "not on the network's allowlist" in await get(box, f"http://[{refused}]/")
    async with box_on(local, Network("public", block=("2600:f0f0::/64",))) as box:
        assert "block list" in await get(box, f"http://[{THERE}]/")
        assert "not a public one" in await get(box, f"http://[{HIDDEN}]/")


# Tries each address in the ways a program without privileges has: plainly, bound to the interface, which makes the
# kernel take any address for a neighbour, and with a route of its own making in the packet (type 4 needs no right).
DIAL = """
import socket, struct, sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

IPV6_RTHDR = 57
ROUTE = struct.pack("BBBBBBH", 0, 2, 4, 0, 0, 0, 0)
WAYS = ((None, False), (b"tap0", False), (b"tap0", True))

def dial(address, kind, way):
    device, routed = way
    sock = socket.socket(socket.AF_INET6, kind)
    sock.settimeout(3)
    try:
        if device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        if routed:
            header = ROUTE + socket.inet_pton(socket.AF_INET6, address)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, header)
        number = socket.if_nametoindex("tap0") if address.startswith(("fe80", "ff")) else 0
        sock.connect((address, int(sys.argv[1]), 0, number))
        sock.send(b"GET / HTTP/1.0\\r\\n\\r\\n")
        if kind == socket.SOCK_STREAM:
            print("connected", address, device, routed)
    except OSError:
        pass

with ThreadPoolExecutor(100) as threads:
    tries = product(sys.argv[2:], (socket.SOCK_STREAM, socket.SOCK_DGRAM), WAYS)
    list(threads.map(lambda one: dial(*one), tries))
"""
ATTACKED = (
    "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "fd00::2", "fd00::3", "fe80::2", "fe80::1",
    "ff02::1", "ff02::fb", "ff0e::1",
)  # fmt: skip


@pytest.mark.slow
@needs_slirp
async def test_a_public_network_reaches_ipv6_and_nothing_of_the_hosts_by_it(local: LocalProvider) -> None:
    async with elsewhere(ipv6=True):
        assert reaches_ipv6()
        await attacked(local)


async def attacked(local: LocalProvider) -> None:
    async with heard_at_every_address() as (web, port), box_on(local, PUBLIC) as box:
        with closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as heard:
            heard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            heard.bind(("::", port))
            heard.setblocking(False)
            patiently = ("--retry", "20", "--retry-all-errors", "--retry-delay", "1")
            assert await get(box, f"http://[{THERE}]/", *patiently) == SAYS
            own = [address for address in own_addresses_v6() if address not in ATTACKED]
            assert HERE in own
            said = await box.run(["python3", "-c", DIAL, str(port), *ATTACKED, *own], timeout=120)
            assert (said.stdout, said.stderr) == ("", "")
            said = await box.run(["python3", "-c", DIAL, "80", HIDDEN], timeout=60)
            assert said.stdout == ""
            assert await get(box, f"http://[{THERE}]/", *patiently) == SAYS  # what was sent before has been dealt with
            with pytest.raises(BlockingIOError):
                heard.recv(100)
        assert web.connections == 0
