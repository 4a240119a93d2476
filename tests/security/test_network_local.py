"""What hostile code in a sandbox of the local provider tries once it has a network."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from forkyard.sandbox import PUBLIC, Network, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.network_public import own_addresses, program
from tests.support.web import Web, served

needs_slirp = pytest.mark.skipif(program() is None, reason="slirp4netns is not installed (apt-get install slirp4netns)")

# Tries an address in the ways a program without privileges has: plainly, and bound to the interface, which makes the
# kernel take any address for a neighbour.
DIAL = """
import socket, sys, threading
def dial(address, device):
    sock = socket.socket()
    sock.settimeout(4)
    try:
        if device:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        sock.connect((address, int(sys.argv[1])))
        print("connected", address, device)
    except OSError:
        pass
for address in sys.argv[2:]:
    for device in (None, b"tap0"):
        threading.Thread(target=dial, args=(address, device)).start()
"""


async def test_a_sandbox_with_a_door_reaches_the_host_by_no_other_way(local: LocalProvider) -> None:
    web = Web()
    async with served(web) as port:
        box = await local.create(SandboxSpec(network=Network("allowlist", ("example.org",))))
        try:
            addresses = ("127.0.0.1", "127.0.0.2", "169.254.169.254", *own_addresses())
            said = await box.run(["python3", "-c", DIAL, str(port), *addresses], timeout=60)
            assert (said.stdout, said.exit_code) == ("", 0), said.stderr
            for address in addresses:
                said = await box.run(f"curl -sS --noproxy '' http://{address}:{port}/", timeout=30)
                assert "may not be reached" in said.stdout
        finally:
            await box.close()
    assert web.connections == 0


@pytest.mark.slow
@needs_slirp
async def test_a_public_network_leads_to_nothing_of_the_hosts(local: LocalProvider) -> None:
    web = Web()
    server = await asyncio.start_server(web, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    box = await local.create(SandboxSpec(network=PUBLIC))
    try:
        addresses = ("127.0.0.1", "10.0.2.2", "10.0.2.3", "169.254.169.254", *own_addresses())
        said = await box.run(["python3", "-c", DIAL, str(port), *addresses], timeout=60)
        assert (said.stdout, said.exit_code) == ("", 0), said.stderr
    finally:
        await box.close()
        server.close()
    assert web.connections == 0


SEND = """
import socket, sys
for address in sys.argv[2:]:
    for device in (None, b"tap0"):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            if device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            sock.sendto(address.encode(), (address, int(sys.argv[1])))
        except OSError:
            pass
sock = socket.socket()  # an answer by the same way shows that what was sent before has been dealt with
try:
    sock.connect(("10.0.2.3", 9))
except OSError:
    pass
"""


@needs_slirp
async def test_no_datagram_of_a_public_network_arrives_at_the_host_or_its_neighbours(local: LocalProvider) -> None:
    groups = ("224.0.0.251", "239.255.255.250")
    box = await local.create(SandboxSpec(network=PUBLIC))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
            heard.bind(("0.0.0.0", 0))
            heard.setblocking(False)
            for group in groups:
                for address in own_addresses():
                    member = socket.inet_aton(group) + socket.inet_aton(address)
                    with suppress(OSError):  # two addresses of one interface
                        heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            port = str(heard.getsockname()[1])
            broadcast = ("255.255.255.255", "10.0.2.255", "127.0.0.1", "127.255.255.255", "10.0.2.2", "10.0.2.3")
            await box.run(["python3", "-c", SEND, port, *groups, *broadcast, *own_addresses()], timeout=60)
            with pytest.raises(BlockingIOError):
                heard.recv(100)
    finally:
        await box.close()


@needs_slirp
async def test_a_guest_cannot_change_the_routes_of_its_public_network(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec(network=PUBLIC))
    try:
        for attack in (
            "ip route del unreachable 10.0.0.0/8",
            "ip route add 10.0.0.0/9 via 10.0.2.2",
            "ip neigh add 169.254.169.254 lladdr 52:55:0a:00:02:02 dev tap0",
            "ip link set tap0 down",
            "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)'",
            "python3 -c \"open('/dev/net/tun')\"",
        ):
            assert not (await box.run(attack, timeout=100)).ok, attack
    finally:
        await box.close()


@needs_slirp
async def test_slirp_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from forkyard.sandbox import PUBLIC, SandboxSpec\n"
        "from forkyard.sandbox.local import LocalProvider\n"
        "async def main():\n"
        "    box = await LocalProvider(pathlib.Path(sys.argv[1])).create(SandboxSpec(network=PUBLIC))\n"
        "    print(box._outlet._public._process.pid, flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    slirp = os.pidfd_open(int(await asyncio.to_thread(owner.stdout.readline)))
    try:
        os.kill(owner.pid, signal.SIGKILL)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(slirp, ended.set)
        await asyncio.wait_for(ended.wait(), 100)
        asyncio.get_running_loop().remove_reader(slirp)
    finally:
        os.close(slirp)
        owner.stdout.close()
        owner.wait()
    async with LocalProvider(tmp_path) as provider:
        await provider.sweep()


async def test_a_sandbox_does_not_meet_the_abstract_sockets_or_the_door_of_another(local: LocalProvider) -> None:
    web = Web()
    async with served(web) as port:
        one = await local.create(SandboxSpec(network=Network("allowlist", (f"127.0.0.1:{port}",))))
        two = await local.create(SandboxSpec())
        try:
            listens = (
                "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('\\0door'); s.listen(); "
                "print(1, flush=True); time.sleep(1000)"
            )
            heard = asyncio.Event()
            holding = asyncio.create_task(one.run(["python3", "-c", listens], on_output=lambda *said: heard.set()))
            await asyncio.wait_for(heard.wait(), 100)
            dial = "import socket; s=socket.socket(socket.AF_UNIX); s.connect('\\0door')"
            assert "refused" in (await two.run(["python3", "-c", dial], timeout=100)).stderr
            assert not (await two.run(f"curl -sS -x http://127.0.0.1:3128 http://127.0.0.1:{port}/", timeout=100)).ok
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        finally:
            await one.close()
            await two.close()
    assert web.connections == 0


async def test_a_port_that_pid_1_hands_out_is_a_tcp_socket_or_nothing() -> None:
    from forkyard.sandbox.held.ports import received_socket

    left, right = socket.socketpair()
    with right:
        with pytest.raises(ValueError, match="no TCP socket"):
            received_socket([left.detach()])
        first, second = os.pipe()
        os.close(second)
        with pytest.raises((ValueError, OSError)):
            received_socket([first])
