"""The public network of an ordinary user, who may open /dev/net/tun as on most machines: slirp4netns without root."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import textwrap

import pytest

from forkyard.sandbox.local.network_public import own_addresses
from tests.support.elsewhere import HERE_V6, PLACE, PLACE_V6, PRIVATE_V6, SAYS, elsewhere
from tests.support.ordinary_user import home_of_the_user, run_as_user

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")]

VISITS = """
    import asyncio, sys
    from forkyard.sandbox import NO_NETWORK, PUBLIC, SandboxSpec
    from forkyard.sandbox.local import LocalProvider
    from forkyard.sandbox.local.network_public import program

    GET = ["curl", "-sS", "-g", "-m", "20", "--retry", "20", "--retry-all-errors", "--retry-delay", "1"]
    async def main():
        assert program()
        reached, closed = sys.argv[2].split(), sys.argv[3].split()
        async with LocalProvider() as provider:
            box = await provider.create(SandboxSpec(network=PUBLIC))
            for url in reached:
                said = await box.run([*GET, url], timeout=60)
                print(said.stdout or said.stderr)
            said = await box.run(["python3", "-c", sys.argv[4], sys.argv[1], *closed], timeout=120)
            print(said.stdout, said.stderr)
            await box.set_network(NO_NETWORK)
            print((await box.run("grep -c tap0 /proc/net/dev")).stdout.strip())
            await box.close()

    asyncio.run(main())
"""


DIAL = """
    import socket, sys
    from concurrent.futures import ThreadPoolExecutor

    def dial(address, device):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.settimeout(3)
        try:
            if device:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            sock.connect((address, int(sys.argv[1])))
            print("connected", address, device)
        except OSError:
            pass

    with ThreadPoolExecutor(50) as threads:
        for address in sys.argv[2:]:
            for device in (None, b"tap0"):
                threads.submit(dial, address, device)
"""


@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
async def test_a_user_reaches_public_addresses_and_nothing_of_the_machine(subordinate_ids: bool) -> None:
    if not shutil.which("slirp4netns"):
        pytest.skip("slirp4netns is not installed (apt-get install slirp4netns)")
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    async with elsewhere(ipv6=True):
        with (
            home_of_the_user() as home,
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as here,
        ):
            port = str(here.getsockname()[1])
            reached = f"http://{PLACE}/ http://[{PLACE_V6}]/"
            closed = " ".join(["127.0.0.1", "10.0.2.2", "::1", "fd00::2", HERE_V6, PRIVATE_V6, *own_addresses()])
            done = run_as_user(
                sys.executable, "-c", textwrap.dedent(VISITS), port, reached, closed, textwrap.dedent(DIAL),
                home=home, subordinate_ids=subordinate_ids, tun=True,
            )  # fmt: skip
            assert (done.stdout.split(), done.stderr) == ([*SAYS.split(), *SAYS.split(), "0"], "")
            here.setblocking(False)
            with pytest.raises(BlockingIOError):
                here.accept()
