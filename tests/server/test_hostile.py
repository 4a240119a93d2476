"""What broke the server once: slow clients, hostile servers in sandboxes, pages of other sandboxes, a full disk."""

from __future__ import annotations

import asyncio
import logging
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from pydantic import BaseModel
from uvicorn.server import ServerState

from forkyard.server.address import Address
from forkyard.server.app import App
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer
from forkyard.server.listening import FrontConnection, _config
from forkyard.server.proxy import DOORS
from forkyard.server.serving import Server
from forkyard.server.state import State

HOSTILE = r"""
import base64, hashlib, socket, sys, threading
COOKIE = b"Set-Cookie: s=1; Domain=forkyard.localhost; Path=/\r\n"
SAID = {
    "/both": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "/999": b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    "/denied": b"HTTP/1.1 403 No\r\n" + COOKIE + b"Content-Length: 2\r\n\r\nno",
}
def answer(client):
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(65536) or sys.exit()
    path = head.split()[1].decode()
    if path == "/opened":
        lines = [line.partition(b": ") for line in head.split(b"\r\n")]
        key = next(value for name, _, value in lines if name.lower() == b"sec-websocket-key")
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        client.sendall(b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + COOKIE
            + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n\x88\x02\x03\xe8")
    else:
        client.sendall(SAID.get(path, b"HTTP/1.1 203 Odd\r\nContent-Length: 0\r\n\r\n"))
    client.close()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Thing(BaseModel):
    text: str


@asynccontextmanager
async def exposed(server: Server, http: httpx2.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """The id of a sandbox with a hostile server at its port 8000, which everybody reaches, and at 9000; its name."""
    from forkyard.server.sandboxes import Action, Sandboxes

    made = await http.post("/api/sandboxes?wait=true", json={"base_image": "host", "ports": [8000]})
    shown = made.json()["data"]
    life = server.the(Sandboxes).get(shown["sandbox_id"])
    await life.sandbox.write("/server.py", HOSTILE.encode())
    for port in (8000, 9000):
        await life.sandbox.run(f"setsid python3 /server.py {port} >/dev/null 2>&1 &", timeout=20)
        for _ in range(4000):
            with suppress(ConnectionError):
                (await life.sandbox.connect(port)).close()
                break
            await life.sandbox.run("sleep 0.02", timeout=20)
    yield shown["sandbox_id"], shown["endpoints"][0]["hostname"]
    await life.do(Action.STOP)
    assert (await http.delete(f"/api/sandboxes/{shown['sandbox_id']}")).status_code == 204


async def asked(address: Address, host: str, path: str, more: bytes = b"") -> bytes:
    """All of an answer to a GET, its connection being closed after it."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode() + (more or b"Connection: close\r\n") + b"\r\n")
    async with asyncio.timeout(100):
        said = await reader.readuntil(b"\r\n\r\n")
        if not more:
            said += await reader.read()
    writer.close()
    return said


async def test_a_hostile_server_in_a_sandbox_is_no_fault_of_ours(
    server: Server, http: httpx2.AsyncClient, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    async with exposed(server, http) as (_, host):
        both = await asked(address, host, "/both")
        assert both.startswith(b"HTTP/1.1 200 ") and b"hello" in both and b"content-length" not in both
        assert (await asked(address, host, "/999")).startswith(b"HTTP/1.1 502 ")
        assert (await asked(address, host, "/999", UPGRADE)).startswith(b"HTTP/1.1 502 ")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_web_socket_sets_no_cookie_for_other_sandboxes(
    server: Server, http: httpx2.AsyncClient, address: Address
) -> None:
    async with exposed(server, http) as (_, host):
        for path, status in (("/opened", b"101"), ("/denied", b"403")):
            said = await asked(address, host, path, UPGRADE)
            assert said.startswith(b"HTTP/1.1 " + status) and b"set-cookie: s=1; Path=/\r\n" in said, said


async def test_a_page_of_another_sandbox_does_not_come_in_with_the_visitors_cookie(
    server: Server, http: httpx2.AsyncClient, address: Address
) -> None:
    async with exposed(server, http) as (sandbox, host):
        token = (await http.post(f"/api/sandboxes/{sandbox}/port-tokens", json={"port": 9000})).json()["data"]["token"]
        host = f"9000-{host.partition('-')[2]}:{address.port}"
        for headers, status in (
            ({}, 203),
            ({"Origin": f"http://{host}"}, 203),
            ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": "null"}, 203),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 203),
            ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 404),
            ({"Origin": "http://8000-0.forkyard.localhost"}, 404),
            ({"Origin": "null"}, 404),
        ):
            cookie = {"Host": host, "Cookie": f"archil_token={token}"}
            async with httpx2.AsyncClient(base_url=address.origin, timeout=30) as guest:
                assert (await guest.get("/", headers={**cookie, **headers})).status_code == status, headers
        evil = f"Cookie: archil_token={token}\r\nOrigin: http://8000-0.forkyard.localhost\r\n".encode()
        assert (await asked(address, host, "/opened", UPGRADE + evil)).startswith(b"HTTP/1.1 404 ")
        assert (await asked(address, host, "/opened", UPGRADE + evil.partition(b"\r\n")[0] + b"\r\n")).startswith(
            b"HTTP/1.1 101 "
        )


@pytest.mark.parametrize(
    "after",
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"x"),
    ],
    ids=["a-second-request", "a-body-that-was-refused"],
)
async def test_who_stops_in_the_middle_after_an_answer_is_cut_off(server: Server, after: tuple[bytes, bytes]) -> None:
    class Quick(FrontConnection):
        patience = 0.4

    app = App(server.keys, [])
    state = ServerState()
    listener = await asyncio.get_running_loop().create_server(lambda: Quick(app, state, _config(app)), "127.0.0.1", 0)
    async with listener, asyncio.timeout(100):
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(after[0])
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(after[1])
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_connections_that_say_nothing_keep_nobody_out(address: Address) -> None:
    silent = [await asyncio.open_connection(address.host, address.port) for _ in range(DOORS)]
    try:
        assert (await asked(address, "x", "/openapi.json")).startswith(b"HTTP/1.1 200 ")
    finally:
        for _, writer in silent:
            writer.transport.abort()


async def test_a_token_is_in_no_log_wherever_it_stands(
    http: httpx2.AsyncClient, stranger: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forkyard.server.access")
    for path in ("/api/shared/of-secrets/", "/api/processes/of-secrets", "/api/shared/of-secrets"):
        await stranger.get(path)
    lines = [record.getMessage() for record in caplog.records if record.name == "forkyard.server.access"]
    assert len(lines) == 3 and not any("of-secrets" in line for line in lines)


async def test_a_command_ends_when_its_client_goes(server: Server, http: httpx2.AsyncClient) -> None:
    made = (await http.post("/api/disks", json={"name": "left"})).json()["data"]["diskId"]
    disk = server.disks.get(made)
    going = asyncio.create_task(http.post(f"/api/disks/{made}/exec", json={"command": "touch begun; sleep 250"}))
    async with asyncio.timeout(100):
        while not (disk.directory() / "begun").exists():
            await asyncio.sleep(0.01)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        while (await http.delete(f"/api/disks/{made}")).status_code == 409:  # as long as a command runs over it
            await asyncio.sleep(0.01)


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Writes beyond that fail, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("length", [1, 20_000_000], ids=["when-it-is-committed", "before-it-is-committed"])
def test_a_row_that_cannot_be_written_is_told_and_leaves_no_transaction_behind(tmp_path: Path, length: int) -> None:
    state = State(tmp_path / "state.sqlite")
    table = state.table("things", Thing)
    size = (tmp_path / "state.sqlite-wal").stat().st_size
    with no_file_longer_than(size), pytest.raises(sqlite3.OperationalError, match="full|I/O"):
        table.add("1", Thing(text="x" * length))
    table.add("2", Thing(text="kept"))
    state.close()
    again = State(tmp_path / "state.sqlite")
    assert [thing.text for thing in again.table("things", Thing).list()] == ["kept"]
    again.close()


async def test_a_full_disk_is_told_as_such_and_is_no_fault_of_ours(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    state = State(server.home / "full.sqlite")
    table = state.table("things", Thing)
    state._db.execute("PRAGMA max_page_count = 1")

    async def full(call: Call) -> Answer:
        table.add("1", Thing(text="x" * 100_000))
        return Answer()

    async def full_disk(call: Call) -> Answer:
        raise OSError(28, "No space left on device", "/secret/path")

    paths = [Endpoint("GET", "/a", full, "", public=True), Endpoint("GET", "/b", full_disk, "", public=True)]
    transport = httpx2.ASGITransport(App(server.keys, paths))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        for path in ("/a", "/b"):
            answer = await client.get(path)
            assert answer.status_code == 507 and answer.json()["code"] == "no_room" and "secret" not in answer.text
    state.close()
    assert not [record for record in caplog.records if record.exc_info]
