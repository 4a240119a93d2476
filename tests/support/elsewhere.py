"""A server with public addresses, in a network of its own that only this machine leads to."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

PLACE = "11.22.33.2"
HERE_V6, PLACE_V6, PRIVATE_V6 = "2600:f0f0::1", "2600:f0f0::2", "fd77:f0f0::2"
SAYS = "from elsewhere"
_OURS, _THEIRS = "fyardt0", "fyardt1"
_SERVER = f"""
import http.server, socket, subprocess, sys
def ip(*words):
    subprocess.run(["ip", *words], check=True)
ip("link", "set", "lo", "up")
print("ready", flush=True)
addresses = sys.stdin.readline().split()
for address in addresses:
    ip("address", "add", address, "dev", "{_THEIRS}", *(["nodad"] if ":" in address else []))
ip("link", "set", "{_THEIRS}", "up")
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if len(addresses) > 1 else socket.AF_INET
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{SAYS}")
    def log_message(self, *said): pass
server = Server(("::" if len(addresses) > 1 else "0.0.0.0", 80), Handler)
print("serving", flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def elsewhere(*, ipv6: bool = False) -> AsyncIterator[None]:
    """It answers every request with SAYS: at PLACE, and with `ipv6` at PLACE_V6 and PRIVATE_V6."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root, and ip (apt-get install iproute2)")
    if ipv6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    theirs = [f"{PLACE}/30", *([f"{PLACE_V6}/64", f"{PRIVATE_V6}/64"] if ipv6 else [])]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        "unshare", "-n", "python3", "-u", "-c", _SERVER, stdin=pipe, stdout=pipe
    )
    assert server.stdin and server.stdout
    try:
        await server.stdout.readline()
        await _ip(f"link add {_OURS} type veth peer name {_THEIRS} netns {server.pid}")
        await _ip(f"address add 11.22.33.1/30 dev {_OURS}")
        for address in (HERE_V6, "fd77:f0f0::1") if ipv6 else ():
            await _ip(f"address add {address}/64 dev {_OURS} nodad")
        await _ip(f"link set {_OURS} up")
        server.stdin.write(" ".join(theirs).encode() + b"\n")
        assert await server.stdout.readline() == b"serving\n"
        yield
    finally:
        gone = await asyncio.create_subprocess_exec("ip", "link", "del", _OURS, stderr=pipe)
        await gone.communicate()  # at once, and not with the server's network some time after it
        server.kill()
        await server.communicate()


async def _ip(words: str) -> None:
    done = await asyncio.create_subprocess_exec("ip", *words.split(), stderr=asyncio.subprocess.PIPE)
    _, said = await done.communicate()
    if done.returncode != 0:
        pytest.skip(f"ip {words}: {said.decode()}")
