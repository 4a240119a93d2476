"""Ports of sandboxes, reached through the server by host names of their own, by HTTP and web sockets."""

from __future__ import annotations

import asyncio
import io
import ssl
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from forkyard.sandbox import Sandbox
from forkyard.server.address import Address
from forkyard.server.ports.values import seconds_of
from forkyard.server.sandboxes import Action, Life, Sandboxes
from forkyard.server.serving import Server
from forkyard.server.tls import ca_path

SERVER = r"""
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding"):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        told = f"{self.command} {self.path} {sorted((k.lower(), v) for k, v in self.headers.items())} ".encode() + body
        if self.path == "/endless":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            try:
                while True:
                    self.wfile.write(b"5\r\nhello\r\n")
            except OSError:
                open("/gone", "w").close()
            return
        if self.path == "/short":
            self.send_response(200); self.send_header("Content-Length", "100"); self.end_headers()
            self.wfile.write(b"short"); self.wfile.flush(); self.close_connection = True
            return
        if self.path == "/nonsense":
            self.wfile.write(b"nonsense\r\n\r\n"); self.close_connection = True
            return
        if self.path == "/304":
            self.send_response(304); self.send_header("Content-Length", "7"); self.end_headers()
            return
        self.send_response(203)
        self.send_header("Content-Length", str(len(told)))
        self.send_header("Set-Cookie", "a=b; Domain=forkyard.localhost; Path=/")
        self.send_header("Connection", "X-Inner")
        self.send_header("X-Inner", "hop")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(told)
    do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = answer
    def log_message(self, *said): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest_asyncio.fixture(loop_scope="module")
async def box(server: Server, http: httpx2.AsyncClient) -> AsyncIterator[Box]:
    made = await Box.made(server, http, ports=[8000])
    yield made
    await made.life.do(Action.STOP)
    assert (await http.delete(made.path)).status_code == 204


class Box:
    """A sandbox of the server."""

    def __init__(self, server: Server, http: httpx2.AsyncClient, shown: dict[str, Any]) -> None:
        self.http = http
        self.shown = shown
        self.path = f"/api/sandboxes/{shown['sandbox_id']}"
        self.life: Life = server.the(Sandboxes).get(shown["sandbox_id"])

    @classmethod
    async def made(cls, server: Server, http: httpx2.AsyncClient, **more: Any) -> Box:
        answer = await http.post("/api/sandboxes?wait=true", json={"base_image": "host", **more})
        assert answer.status_code == 202, answer.text
        return cls(server, http, answer.json()["data"])

    @property
    def sandbox(self) -> Sandbox:
        return self.life.sandbox

    def host(self, port: int) -> str:
        return f"{port}-{self.life.id.replace('-', '')}.forkyard.localhost"

    async def serve(self, port: int, script: str = SERVER) -> None:
        """Have a server listen, and wait until it does."""
        await self.sandbox.write("/server.py", script.encode())
        started = await self.sandbox.run(f"setsid python3 /server.py {port} >/dev/null 2>&1 &", timeout=20)
        assert started.ok
        for _ in range(400):
            try:
                (await self.sandbox.connect(port)).close()
                return
            except ConnectionError:
                await self.sandbox.run("sleep 0.02", timeout=20)
        raise AssertionError("it does not listen")

    async def token(self, port: int, **more: Any) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/port-tokens", json={"port": port, **more})
        assert answer.status_code == 201, answer.text
        return dict(answer.json()["data"])


@asynccontextmanager
async def visitor(address: Address, host: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody without a key, at a port's host name."""
    async with httpx2.AsyncClient(base_url=address.origin, headers={"Host": host}, timeout=30) as client:
        yield client


async def test_a_declared_port_is_reached_by_everybody(box: Box, address: Address) -> None:
    assert box.shown["endpoints"] == [{"port": 8000, "hostname": box.host(8000)}]
    await box.serve(8000)
    async with visitor(address, f"{box.host(8000)}:{address.port}") as guest:
        answer = await guest.post(
            "/a%2Fb/../c?x=%20&x=2", content=b"body", headers={"X-Mine": "1", "Connection": "X-Mine"}
        )
        assert answer.status_code == 203
        told = answer.text
        assert told.startswith("POST /a%2Fb/../c?x=%20&x=2 ") or told.startswith("POST /c?x=%20&x=2 "), told
        assert told.endswith(" body") and f"('host', '{box.host(8000)}:{address.port}')" in told
        assert "('x-forwarded-for', '127.0.0.1')" in told and "('x-forwarded-proto', 'http')" in told
        assert "x-mine" not in told and "x-inner" not in answer.headers
        assert answer.headers["set-cookie"] == "a=b; Path=/" and "x-request-id" in answer.headers


async def test_behind_the_servers_proxy_it_is_the_host_name_alone_and_https(
    server: Server, box: Box, address: Address
) -> None:
    await box.serve(8000)
    trusting = ssl.create_default_context(cafile=str(ca_path(server.home)))
    async with httpx2.AsyncClient(proxy=address.origin, verify=trusting, timeout=30) as guest:
        told = (await guest.get(f"https://{box.shown['endpoints'][0]['hostname']}/")).text
    assert f"('host', '{box.host(8000)}')" in told and "('x-forwarded-proto', 'https')" in told


async def test_bodies_of_every_kind_pass(box: Box, address: Address) -> None:
    await box.serve(8000)
    large = bytes(3_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield large[:1_000_000]

    async with visitor(address, box.host(8000)) as guest:
        assert len((await guest.put("/", content=large)).content) > len(large)
        assert len((await guest.put("/", content=pieces())).content) > len(large)
        head = await guest.head("/")
        assert (head.status_code, head.content) == (203, b"") and int(head.headers["content-length"]) > 10
        assert (await guest.get("/304")).status_code == 304
        assert (await guest.get("/nonsense")).status_code == 502
        with pytest.raises(httpx2.HTTPError):
            await guest.get("/short")


async def test_a_client_that_goes_ends_an_endless_answer(box: Box, address: Address) -> None:
    await box.serve(8000)
    async with visitor(address, box.host(8000)) as guest, guest.stream("GET", "/endless") as answer:
        async for piece in answer.aiter_bytes():
            assert piece.startswith(b"hello")
            break
    seen = await box.sandbox.run("until [ -e /gone ]; do sleep 0.02; done", timeout=20)
    assert seen.ok


async def test_exposing_and_taking_back(box: Box, http: httpx2.AsyncClient, address: Address) -> None:
    await box.serve(9000)
    async with visitor(address, box.host(9000)) as guest:
        refused = await guest.get("/")
        assert refused.status_code == 404 and "X-Archil-Token" in refused.json()["error"]
        assert [(await http.put(f"{box.path}/ports/9000")).status_code for _ in range(2)] == [201, 200]
        assert (await guest.get("/")).status_code == 203
        listed = (await http.get(f"{box.path}/ports")).json()["data"]["ports"]
        assert listed == [{"port": port, "hostname": box.host(port)} for port in (8000, 9000)]
        assert [(await http.delete(f"{box.path}/ports/9000")).status_code for _ in range(2)] == [204, 204]
        assert (await guest.get("/")).status_code == 404
    for wrong in ("0", "65536", "x", "-1", "²"):
        assert (await http.put(f"{box.path}/ports/{wrong}")).status_code == 400
    assert (await http.put("/api/sandboxes/no/ports/1")).status_code == 404


async def test_a_token_opens_one_port_of_one_sandbox_and_stays_outside(box: Box, address: Address, key: str) -> None:
    await box.serve(9000)
    token = await box.token(9000)
    other = await box.token(9001)
    assert token["hostname"] == box.host(9000) and token["expires_at"] is None
    async with visitor(address, box.host(9000)) as guest:
        ours = {"X-Archil-Token": token["token"], "Authorization": key}
        told = (await guest.get("/", headers=ours)).text
        assert told.startswith("GET / ") and token["token"] not in told and key not in told
        theirs = {
            "X-Archil-Token": token["token"],
            "Authorization": "Bearer of-the-app",
            "Cookie": "a=1; archil_token=x",
        }
        told = (await guest.get("/", headers=theirs)).text
        assert "Bearer of-the-app" in told and "('cookie', 'a=1')" in told
        for wrong in (other["token"], token["token"][:-1], "", "apt_", key):
            assert (await guest.get("/", headers={"X-Archil-Token": wrong})).status_code == 401


async def test_browsers_bring_a_token_by_an_address_and_keep_it_as_a_cookie(box: Box, address: Address) -> None:
    await box.serve(9000)
    token = (await box.token(9000, ttl="1h"))["token"]
    async with visitor(address, f"{box.host(9000)}:{address.port}") as guest:
        moved = await guest.get(f"/x//y?a=1&archil_token={token}&b=2")
        assert moved.status_code == 303
        assert moved.headers["location"] == f"http://{box.host(9000)}:{address.port}/x//y?a=1&b=2"
        cookie = moved.headers["set-cookie"]
        assert cookie.startswith(f"archil_token={token}; ") and "HttpOnly" in cookie and "expires=" in cookie
        told = (await guest.get("/x", headers={"Cookie": f"archil_token={token}"})).text
        assert told.startswith("GET /x ") and token not in told
        told = (await guest.post(f"/x?archil_token={token}")).text
        assert told.startswith("POST /x [") and token not in told
        assert (await guest.get("/?archil_token=wrong")).status_code == 401


async def test_tokens_are_listed_page_by_page_and_expire(box: Box, http: httpx2.AsyncClient, address: Address) -> None:
    made = [(await box.token(9000 + number, ttl="1h"))["id"] for number in range(3)]
    first = (await http.get(f"{box.path}/port-tokens?limit=2")).json()
    assert [token["id"] for token in first["data"]["tokens"]] == made[:2]
    rest = (await http.get(f"{box.path}/port-tokens?limit=2&cursor={first['nextCursor']}")).json()
    assert [token["id"] for token in rest["data"]["tokens"]] == made[2:] and "nextCursor" not in rest
    one = (await http.get(f"{box.path}/port-tokens/{made[0]}")).json()["data"]
    assert set(one) == {"id", "port", "created_at", "expires_at"} and one["port"] == 9000
    assert [(await http.delete(f"{box.path}/port-tokens/{made[0]}")).status_code for _ in range(2)] == [204, 404]
    assert (await http.get(f"{box.path}/port-tokens/{made[0]}")).status_code == 404
    short = await box.token(9000, ttl="0.001s")
    async with visitor(address, box.host(9000)) as guest:
        assert (await guest.get("/", headers={"X-Archil-Token": short["token"]})).status_code == 401
    assert (await http.get(f"{box.path}/port-tokens/{short['id']}")).status_code == 404
    for ttl in ("", "1", "-1h", "1d", "8761h", "0s", "1e9h", "h", "1h 2m"):
        assert (await http.post(f"{box.path}/port-tokens", json={"port": 1, "ttl": ttl})).status_code == 400
    for port in (0, 65536, "80", True):
        assert (await http.post(f"{box.path}/port-tokens", json={"port": port})).status_code == 400


def test_durations() -> None:
    assert [seconds_of(text) for text in ("1h", "30m", "1h30m", "1.5h", "8760h")] == [
        3600,
        1800,
        5400,
        5400,
        31_536_000,
    ]


async def test_a_request_wakes_a_paused_sandbox_and_a_stopped_one(
    box: Box, address: Address, http: httpx2.AsyncClient
) -> None:
    await box.serve(8000)
    async with visitor(address, box.host(8000)) as guest:
        assert (await http.post(f"{box.path}/pause")).status_code == 202
        answers = await asyncio.gather(*(guest.get("/") for _ in range(5)))
        assert [answer.status_code for answer in answers] == [203] * 5
        await http.post(f"{box.path}/stop")
        answer = await guest.get("/")
        assert answer.status_code == 502 and "nothing listens at port 8000" in answer.json()["error"]
        assert (await http.get(box.path)).json()["data"]["status"] == "running"
        await box.serve(8000)
        await http.post(f"{box.path}/pause")
    async with visitor(address, box.host(9999)) as guest:
        assert (await guest.get("/", headers={"X-Archil-Token": "no"})).status_code == 401
    assert (await http.get(box.path)).json()["data"]["status"] == "paused"


async def test_forks_have_the_ports_but_no_tokens(
    server: Server, box: Box, http: httpx2.AsyncClient, address: Address
) -> None:
    await box.token(9000)
    forked = Box(server, http, (await http.post(f"{box.path}/fork?wait=true")).json()["data"])
    assert forked.shown["endpoints"] == [{"port": 8000, "hostname": forked.host(8000)}]
    assert (await http.get(f"{forked.path}/port-tokens")).json()["data"] == {"tokens": []}
    await forked.serve(8000)
    async with visitor(address, forked.host(8000)) as guest:
        assert (await guest.get("/")).status_code == 203
        await http.post(f"{forked.path}/stop")
        await http.delete(forked.path)
        assert (await guest.get("/")).status_code == 404


async def test_names_that_are_no_ports_are_not_there(box: Box, address: Address) -> None:
    for host in (
        "x.forkyard.localhost",
        f"0{box.host(8000)}",
        f"70000-{'0' * 32}.forkyard.localhost",
        f"8000-{'0' * 32}.forkyard.localhost",
    ):
        async with visitor(address, host) as guest:
            assert (await guest.get("/api/sandboxes")).status_code == 404
    async with visitor(address, "forkyard.localhost") as guest:
        assert (await guest.get("/api/sandboxes")).status_code == 401


WEB_SOCKETS = r"""
import asyncio, sys
from websockets.asyncio.server import serve
async def handle(socket):
    await socket.send(f"{socket.request.path} {socket.subprotocol} {sorted(socket.request.headers.raw_items())}")
    async for message in socket:
        if message == "leave":
            await socket.close(4001, "as asked")
            return
        await socket.send(message)
async def process(connection, request):
    if request.path == "/away":
        response = connection.respond(302, "")
        response.headers["Location"] = "ws://127.0.0.1:1/"
        return response
async def main():
    async with serve(handle, "127.0.0.1", int(sys.argv[1]), subprotocols=["chat"], process_request=process) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@pytest_asyncio.fixture(loop_scope="module")
async def socketed(box: Box) -> Box:
    await box.sandbox.push(packed_tree(websockets.__path__[0]), "/lib-of-tests")
    await box.serve(8000, f"import sys; sys.path.insert(0, '/lib-of-tests')\n{WEB_SOCKETS}")
    return box


def packed_tree(place: str) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        tar.add(place, "websockets", filter=lambda info: None if info.name.endswith((".so", ".pyc")) else info)
    return whole.getvalue()


@asynccontextmanager
async def socket_to(address: Address, host: str, path: str, **more: Any) -> AsyncIterator[ClientConnection]:
    """A web socket to a port's host name, which is at this address."""
    url = f"ws://{host}:{address.port}{path}"
    async with connect(url, host="127.0.0.1", port=address.port, proxy=None, **more) as socket:
        yield socket


async def test_web_sockets_pass_both_ways(socketed: Box, address: Address) -> None:
    headers = {"Origin": "http://app", "X-Mine": "1"}
    host = socketed.host(8000)
    async with socket_to(address, host, "/chat?x=1", additional_headers=headers, subprotocols=["chat"]) as socket:
        hello = str(await socket.recv())
        assert hello.startswith("/chat?x=1 chat ") and "('x-mine', '1')" in hello and "http://app" in hello
        assert hello.lower().count("host'") == 2 and hello.count(f"{host}:{address.port}") == 2
        for message in ("text", b"bytes", "x" * 900_000):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send("leave")
        await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (4001, "as asked")


async def test_web_sockets_are_refused_as_the_server_inside_or_we_refuse_them(socketed: Box, address: Address) -> None:
    with pytest.raises(ValueError, match=r"cannot follow cross-origin redirect to ws://127.0.0.1:1/"):
        async with socket_to(address, socketed.host(8000), "/away", subprotocols=["chat"]):
            pass
    for port, status in ((8000, 400), (8001, 404)):  # without a protocol, the server inside takes nobody
        with pytest.raises(InvalidStatus) as caught:
            async with socket_to(address, socketed.host(port), "/"):
                pass
        assert caught.value.response.status_code == status
    with pytest.raises(InvalidStatus) as caught:
        async with socket_to(address, socketed.host(9000), "/", additional_headers={"X-Archil-Token": "no"}):
            pass
    assert caught.value.response.status_code == 401


async def test_a_web_socket_ends_with_its_sandbox(socketed: Box, address: Address) -> None:
    async with socket_to(address, socketed.host(8000), "/", subprotocols=["chat"]) as socket:
        await socket.recv()
        await socketed.life.do(Action.STOP)
        await socket.wait_closed()
        assert socket.close_code in (1001, 1011)
