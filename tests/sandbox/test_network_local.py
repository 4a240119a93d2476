"""Networks of the local provider, with the programs people use inside."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import NO_NETWORK, PUBLIC, Network, ProgramResult, Sandbox, SandboxSpec, forwarded
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.network_public import own_addresses, program
from tests.support.elsewhere import PLACE, SAYS, elsewhere
from tests.support.web import Web, certificate, echo, served

SERVER = """
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"inside")
    def log_message(self, *said): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def box_on(local: LocalProvider, network: Network) -> AsyncIterator[Sandbox]:
    async with closed_at_the_end(await local.create(SandboxSpec(network=network))) as sandbox:
        yield sandbox


@asynccontextmanager
async def closed_at_the_end(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def out(box: Sandbox, command: str | Sequence[str], **env: str) -> str:
    result = await box.run(command, {"no_proxy": "", "NO_PROXY": "", **env}, timeout=60)
    return result.stdout + result.stderr


def at(port: int) -> Network:
    """This machine's loopback at one port, by name and by address."""
    return Network("allowlist", (f"localhost:{port}", f"127.0.0.0/8:{port}"))


@asynccontextmanager
async def files(directory: Path) -> AsyncIterator[int]:
    """A server of files; a directory is what its index.html says."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split(b" ")
        path = directory / line[1].decode().partition("?")[0].lstrip("/")
        path = path / "index.html" if path.is_dir() else path
        status, body = (b"200 OK", path.read_bytes()) if path.is_file() else (b"404 Not Found", b"")
        kind = b"text/html" if path.name == "index.html" else b"application/octet-stream"
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        writer.write(head % (status, kind, len(body)) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with served(answer) as port:
        yield port


async def test_without_a_network_there_is_no_proxy_and_no_task(local: LocalProvider) -> None:
    async with box_on(local, NO_NETWORK) as box:
        tasks = asyncio.all_tasks()
        assert "proxy" not in (await box.run("env")).stdout.lower()
        assert box.visits == ()
        assert {str(task.get_coro()) for task in asyncio.all_tasks() - tasks if "Engine." not in str(task)} == set()


async def test_curl_and_urllib_reach_what_is_allowed_and_say_what_is_not(local: LocalProvider) -> None:
    async with served(Web()) as port, served(Web()) as other, box_on(local, at(port)) as box:
        assert await out(box, f"curl -sS http://localhost:{port}/") == "hello "
        assert await out(box, f"curl -sS -d x=y http://127.0.0.1:{port}/") == "hello x=y"
        script = f"import urllib.request as u; print(u.urlopen('http://localhost:{port}/').read())"
        assert await out(box, ["python3", "-c", script]) == "b'hello '\n"
        assert f"localhost:{other} may not be reached" in await out(box, f"curl -sS http://localhost:{other}/")
        assert "403" in await out(box, "curl -sS https://example.org/")
        assert "Could not resolve" in await out(box, "curl -sS --noproxy '*' http://example.org/")
        refused = {visit.host: visit.refused for visit in box.visits if visit.refused}
        assert refused["example.org"] == "it is not on the network's allowlist"


async def test_tls_through_the_door_is_checked_by_the_client_and_not_by_us(
    local: LocalProvider, tmp_path: Path
) -> None:
    context, cert = certificate(tmp_path, "localhost")
    async with served(Web(), context) as port, box_on(local, at(port)) as box:
        await box.write("/cert.pem", cert.read_bytes())
        assert await out(box, f"curl -sS --cacert /cert.pem https://localhost:{port}/") == "hello "
        assert await out(
            box, f"curl -sS --cacert /cert.pem -x socks5h://${{http_proxy#http://}} https://localhost:{port}/"
        ) == ("hello ")
        assert "SSL" in await out(box, f"curl -sS https://localhost:{port}/")


async def test_pip_installs_from_an_index_on_the_list(local: LocalProvider, tmp_path: Path) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_part.py", "answer = 42\n")
        archive.writestr("tiny_part-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-part\nVersion: 1.0\n")
        archive.writestr(
            "tiny_part-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_part-1.0.dist-info/RECORD", "")
    name = "tiny_part-1.0-py3-none-any.whl"
    (tmp_path / "simple" / "tiny-part").mkdir(parents=True)
    (tmp_path / "simple" / "tiny-part" / "index.html").write_text(f'<a href="/{name}">{name}</a>')
    (tmp_path / name).write_bytes(wheel.getvalue())
    async with files(tmp_path) as port, box_on(local, at(port)) as box:
        if not (await box.run(["python3", "-m", "pip", "--version"])).ok:
            pytest.skip("there is no pip for the python3 in /usr (apt-get install python3-pip)")
        install = "python3 -m pip install --no-cache-dir --disable-pip-version-check --target /parts"
        said = await out(box, f"{install} --index-url http://localhost:{port}/simple tiny-part")
        assert "Successfully installed tiny-part-1.0" in said
        assert await out(box, "python3 -c 'import tiny_part; print(tiny_part.answer)'", PYTHONPATH="/parts") == "42\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed (apt-get install git)")
async def test_git_clones_over_http(local: LocalProvider, tmp_path: Path) -> None:
    async with box_on(local, NO_NETWORK) as maker:
        made = await maker.run(
            "cd /tmp && git init -q one && cd one && git config user.name n && git config user.email e@f.test && "
            "echo text > file && git add file && git commit -q -m one && git clone -q --bare . /tmp/one.git && "
            "git -C /tmp/one.git update-server-info",
            timeout=60,
        )
        assert made.ok, made.stderr
        with tarfile.open(fileobj=io.BytesIO(await maker.pull("/tmp/one.git"))) as archive:
            archive.extractall(tmp_path / "one.git", filter="data")
    async with files(tmp_path) as port, box_on(local, at(port)) as box:
        assert await out(box, f"git clone -q http://localhost:{port}/one.git /tmp/two && cat /tmp/two/file") == "text\n"


async def test_the_door_moves_aside_for_a_server_on_its_port(local: LocalProvider) -> None:
    async with served(Web()) as port, box_on(local, NO_NETWORK) as box:
        taken = await box.listen(3128)
        try:
            await box.set_network(at(port))
            assert "127.0.0.1:3128" not in await out(box, "echo $http_proxy")
            assert await out(box, f"curl -sS http://localhost:{port}/") == "hello "
        finally:
            taken.close()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that does not end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(1000))
        await writer.drain()


@asynccontextmanager
async def loading(box: Sandbox, port: int) -> AsyncIterator[asyncio.Task[ProgramResult]]:
    """A download by curl of which something has arrived already."""
    begun = asyncio.Event()
    curl = box.run(
        f"curl -sS -N http://localhost:{port}/",
        {"no_proxy": "", "NO_PROXY": ""},
        on_output=lambda stream, data: begun.set(),
        timeout=60,
    )
    task = asyncio.create_task(curl)
    await asyncio.wait_for(begun.wait(), 100)
    yield task


async def test_a_change_of_the_network_cuts_a_transfer(local: LocalProvider) -> None:
    async with served(endless) as port, box_on(local, at(port)) as box, loading(box, port) as transfer:
        await box.set_network(NO_NETWORK)
        result = await transfer
        assert result.stdout_total > 0
        assert not result.timed_out
        assert await out(box, "echo $http_proxy") == "\n"


async def test_a_sandbox_closed_in_mid_transfer_leaves_nothing(local: LocalProvider) -> None:
    async with served(endless) as port:
        box = await local.create(SandboxSpec(network=at(port)))
        async with loading(box, port) as transfer:
            await box.close()
            with pytest.raises(SandboxLost):
                await transfer
        names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        assert not [name for name in names if name.startswith("Door.")]


async def test_a_port_inside_is_served_on_the_hosts_loopback(local: LocalProvider) -> None:
    async with box_on(local, NO_NETWORK) as box:
        ready = asyncio.Event()
        serving = asyncio.create_task(box.run(["python3", "-c", SERVER], on_output=lambda stream, data: ready.set()))
        await asyncio.wait_for(ready.wait(), 100)
        async with forwarded(box, 8000) as (host, port):
            for _ in range(3):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert (await reader.read(-1)).endswith(b"inside")
                writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_server_inside_that_accepts_nothing_holds_up_nobody_else(local: LocalProvider) -> None:
    async with box_on(local, NO_NETWORK) as box:
        server = await box.listen(8001)
        waiting = [await box.connect(8001) for _ in range(100)]
        assert (await box.run(["true"], timeout=100)).ok
        for sock in (*waiting, server):
            sock.close()


async def test_a_forwarded_port_nobody_listens_at_closes_the_connection(local: LocalProvider) -> None:
    async with box_on(local, NO_NETWORK) as box, forwarded(box, 8009) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read(-1) == b""
        writer.close()


needs_slirp = pytest.mark.skipif(program() is None, reason="slirp4netns is not installed (apt-get install slirp4netns)")


@needs_slirp
async def test_public_is_an_interface_that_comes_and_goes(local: LocalProvider) -> None:
    async with box_on(local, PUBLIC) as box:
        assert "tap0" in await out(box, "cat /proc/net/dev")
        assert await out(box, "cat /etc/resolv.conf") == "nameserver 10.0.2.3\n"
        assert await out(box, "echo $http_proxy") == "\n"
        await box.set_network(NO_NETWORK)
        assert "tap0" not in await out(box, "cat /proc/net/dev")
        await box.set_network(PUBLIC)
        assert "tap0" in await out(box, "cat /proc/net/dev")
        await box.stop()
        await box.start()
        assert "tap0" in await out(box, "cat /proc/net/dev")


RESOLVERS = {
    "a file": "printf 'nameserver 192.0.2.7\\n' > /etc/resolv.conf; chmod 640 /etc/resolv.conf",
    "a link": "ln -sfn ../run/nowhere/resolv.conf /etc/resolv.conf",
    "no file": "rm /etc/resolv.conf",
    "no directory": "cp -a /etc /etc.kept; rm -r /etc",
}
STATE = "stat -c '%F %a %u %Y %n' /etc /etc/resolv.conf; readlink /etc/resolv.conf; cat /etc/resolv.conf; echo"


@needs_slirp
@pytest.mark.parametrize("script", RESOLVERS.values(), ids=RESOLVERS)
async def test_what_the_public_network_replaced_is_back_when_it_goes_or_the_sandbox_stops(
    local: LocalProvider, script: str
) -> None:
    async with box_on(local, NO_NETWORK) as box:
        await box.run(f"{script}; touch -c -d @1000000000 /etc", timeout=100)
        before = await out(box, STATE)
        changes = await box.changes()
        await box.set_network(PUBLIC)
        assert await out(box, "cat /etc/resolv.conf") == "nameserver 10.0.2.3\n"
        assert "/etc/resolv.conf" not in {change.path for change in await box.changes()}
        async with closed_at_the_end(await box.fork()) as copy:
            assert await out(copy, "cat /etc/resolv.conf") == "nameserver 10.0.2.3\n"
            await copy.set_network(NO_NETWORK)
            assert await out(copy, STATE) == before
        await out(box, "while sleep 0.001; do echo mine > /etc/resolv.conf; done >/dev/null 2>&1 &")
        await box.pause()
        await box.stop()
        assert await box.changes() == changes
        await box.set_network(NO_NETWORK)
        await box.start()
        assert await out(box, STATE) == before


@needs_slirp
@pytest.mark.parametrize("wreck", ["touch /etc", "ln -s /tmp /etc", "mkdir -p /etc/resolv.conf/deep"], ids=str)
async def test_what_was_made_of_the_directory_meanwhile_does_not_keep_a_sandbox_from_stopping(
    local: LocalProvider, wreck: str
) -> None:
    async with box_on(local, PUBLIC) as box:
        await out(box, f"rm -rf /etc; {wreck}")
        await box.stop()
        await box.set_network(NO_NETWORK)
        await box.start()
        assert await out(box, "stat -c %F /etc /etc/resolv.conf") == "directory\nregular empty file\n"


@needs_slirp
async def test_a_network_whose_name_server_cannot_be_written_down_is_not_had(local: LocalProvider) -> None:
    async with box_on(local, NO_NETWORK) as box:
        await out(box, "rm -f /etc/resolv.conf; mkdir /etc/resolv.conf")
        with pytest.raises(SandboxError, match="/etc/resolv.conf cannot be had"):
            await box.set_network(PUBLIC)
        assert "tap0" not in await out(box, "cat /proc/net/dev")
        await box.stop()


@needs_slirp
async def test_a_public_network_with_blocked_hosts_goes_through_the_door(local: LocalProvider) -> None:
    async with box_on(local, Network("public", block=("example.org",))) as box:
        assert "tap0" not in await out(box, "cat /proc/net/dev")
        assert "block list names it" in await out(box, "curl -sS http://example.org/")


def test_the_machines_own_addresses_are_found() -> None:
    assert "127.0.0.1" in own_addresses()


async def test_the_echo_of_a_door_is_fast_enough_to_be_used(local: LocalProvider) -> None:
    async with served(echo) as port, box_on(local, at(port)) as box:
        script = (
            "import socket,os\n"
            "host,port=os.environ['http_proxy'][7:].split(':')\n"
            "s=socket.create_connection((host,int(port)))\n"
            f"s.sendall(b'CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n')\n"
            "f=s.makefile('rb')\n"
            "while f.readline()!=b'\\r\\n': pass\n"
            "for n in range(200):\n s.sendall(b'x'*65536); assert f.read(65536)==b'x'*65536\n"
            "print('done')"
        )
        assert await out(box, ["python3", "-c", script]) == "done\n"


@pytest.mark.parametrize("network", [PUBLIC, Network("public", block=("blocked.test",))], ids=["whole", "door"])
async def test_public_reaches_a_public_address(local: LocalProvider, network: Network) -> None:
    async with elsewhere(), box_on(local, network) as box:
        assert await out(box, f"curl -sS -m 20 http://{PLACE}/") == SAYS
