"""One port: requests, TLS, and a proxy that stands for the vendor's hosts and for no other."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from forkyard.errors import ConfigError
from forkyard.server.address import Address
from forkyard.server.hosts import REGIONS, VENDOR_HOSTS
from forkyard.server.listening import Listening, listening
from forkyard.server.outward import USER, Outward, proxy_password
from forkyard.server.pointing import exports
from forkyard.server.proxy import Door, Ways
from forkyard.server.running import Running, running_server
from forkyard.server.serving import Server
from forkyard.server.tls import ca_path, own_context, trusted_path

CONTROL = "https://control.green.us-east-1.aws.prod.archil.com"


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[tuple[str, int], list[bytes]]]:
    """A plain HTTP server that answers one line, and the requests it got."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nmodel\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2], asked


async def said(address: Address, *pieces: bytes) -> bytes:
    """What the port answers to these bytes, until it closes or has said a head."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(100):
            try:
                return await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as err:
                return err.partial
            except ConnectionResetError:
                return b""
    finally:
        writer.close()


def trusting(server: Server) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_path(server.home)))


async def test_every_host_of_the_vendor_is_answered_for_with_our_certificate(
    server: Server, address: Address, key: str
) -> None:
    async with httpx2.AsyncClient(proxy=address.origin, verify=trusting(server)) as client:
        for host in VENDOR_HOSTS:
            if host.startswith("control."):
                reply = await client.get(f"https://{host}/api/tokens", headers={"Authorization": key})
                assert reply.status_code == 200, host
    assert len(VENDOR_HOSTS) == 2 * len(REGIONS)


async def test_urls_made_for_a_client_behind_the_proxy_lead_to_the_port_itself(
    server: Server, address: Address
) -> None:
    from starlette.requests import Request

    def request(host: str, scheme: str = "http") -> Request:
        scope = {
            "type": "http",
            "scheme": scheme,
            "path": "/",
            "headers": [(b"host", host.encode())],
            "query_string": b"",
        }
        return Request({**scope, "server": ("x", 1)})

    assert server.origin(request(CONTROL.removeprefix("https://"), "https")) == address.origin
    assert server.origin(request("box.example:8700")) == "http://box.example:8700"
    assert server.origin(request("box.example", "https")) == "https://box.example"


@pytest.mark.parametrize(
    "target",
    [
        "example.com:443",
        "control.green.us-east-1.aws.prod.archil.com:80",
        "control.green.us-east-1.aws.prod.archil.com.example.com:443",
        "archil.com:443",
        "127.0.0.1:1",
        "169.254.169.254:80",
        "[::1]:22",
        "localhost:22",
    ],
)
async def test_every_other_host_is_refused_without_the_password(address: Address, target: str) -> None:
    for shown in ("", "Basic Zm9ya3lhcmQ6", "Basic Zm9ya3lhcmQ6d3Jvbmc=", "Bearer x", "Basic"):
        header = f"Proxy-Authorization: {shown}\r\n" if shown else ""
        reply = await said(address, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{header}\r\n".encode())
        assert reply.startswith(b"HTTP/1.1 407 ") and b"\r\nproxy-authenticate: Basic " in reply


def connect(server: Server, target: str) -> bytes:
    """A CONNECT as clients make it who were told HTTPS_PROXY by `forkyard env`."""
    pair = base64.b64encode(f"{USER}:{proxy_password(server.home)}".encode()).decode()
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {pair}\r\n\r\n".encode()


async def reached(address: Address, head: bytes) -> bytes:
    """What is at the other end of a CONNECT, as it answers a request; what the proxy says when it refuses."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(head)
        said = await reader.readuntil(b"\r\n\r\n")
        if said.startswith(b"HTTP/1.1 200 "):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
        return said + await reader.read()
    finally:
        writer.close()


async def test_with_the_password_every_other_host_is_reached_as_without_the_proxy(
    server: Server, address: Address
) -> None:
    async with upstream() as ((host, port), asked):
        assert (await reached(address, connect(server, f"{host}:{port}"))).endswith(b"\r\n\r\nmodel\n")
    assert asked == [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
    with socket.socket() as silent:  # a port that is taken, and that nobody listens on
        silent.bind(("127.0.0.1", 0))
        nobody = await reached(address, connect(server, f"127.0.0.1:{silent.getsockname()[1]}"))
    assert nobody.startswith(b"HTTP/1.1 502 ") and b"cannot be reached" in nobody
    for no_host in ("a\nb:443", "a\0b:443", "x" * 100 + ":443", "a:0", "a:99999"):
        assert (await reached(address, connect(server, no_host))).startswith(b"HTTP/1.1 502 ")


async def test_a_proxy_that_the_server_itself_is_told_of_is_gone_through(
    server: Server, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if b"refused.example" in heads[-1]:
            writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: through\r\n\r\n")
        await writer.drain()
        writer.close()

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:my%20own@127.0.0.1:{port}")
        assert b"x: through" in await reached(address, connect(server, "some.example:8443"))
        refused = await reached(address, connect(server, "refused.example:443"))
        assert refused.startswith(b"HTTP/1.1 502 ") and f"proxy 127.0.0.1:{port}".encode() in refused
    assert heads[0].startswith(b"CONNECT some.example:8443 HTTP/1.1\r\n") and b"Basic bWU6bXkgb3du\r\n" in heads[0]
    monkeypatch.setenv("NO_PROXY", "")
    async with upstream() as ((host, port), _):  # a server started in a shell that was pointed at it is no loop
        server_is_its_own = f"http://{USER}:x@{address.host}:{address.port}"
        monkeypatch.setenv("HTTPS_PROXY", server_is_its_own)
        outward = Outward("x", frozenset({(address.host, address.port)}))
        stream = await outward.reach(host, port)
        await stream.send(b"GET / HTTP/1.1\r\n\r\n")
        assert (await stream.reader.read()).endswith(b"model\n")
        stream.abort()


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT \r\n\r\n",
        b"CONNECT control HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"CONNECT a:b:c HTTP/1.1\r\n\r\n",
        b"CONNECT a:443 HTTP/2\r\n\r\n",
        b"CONNECT a:99999999999999999999 HTTP/1.1\r\n\r\n",
        b"CONNECT \xff:443 HTTP/1.1 x\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\n\r\n\x16\x03\x01",
    ],
)
async def test_a_connect_that_is_none_is_told_as_such(address: Address, head: bytes) -> None:
    assert (await said(address, head)).startswith(b"HTTP/1.1 400 ")


async def test_a_head_without_end_is_cut_off(address: Address) -> None:
    assert await said(address, b"CONNECT " + b"a" * 20_000) == b""


async def test_a_connection_that_says_nothing_is_cut_off() -> None:
    ways = Ways(
        serve=asyncio.Protocol,
        context=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        direct=frozenset(),
        tls=False,
        zone="x",
        mapped={},
        outward=Outward("x", frozenset()),
        head_seconds=0.05,
    )
    server = await asyncio.get_running_loop().create_server(lambda: Door(ways), "127.0.0.1", 0)
    async with server, asyncio.timeout(100):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"CONN")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert not ways.doors


async def test_bytes_that_are_no_request_are_refused(address: Address) -> None:
    assert (await said(address, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_request_may_come_byte_by_byte(address: Address) -> None:
    head = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (await said(address, *(bytes([byte]) for byte in head))).startswith(b"HTTP/1.1 200 ")


async def test_the_port_itself_is_reached_through_its_proxy(address: Address) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"CONNECT 127.0.0.1:{address.port} HTTP/1.1\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_mapped_host_is_handed_to_its_upstream(server: Server) -> None:
    async with upstream() as (at, asked):
        how = Listening(mapped={"ai-gateway.vercel.sh": at})
        async with (
            listening(server, how) as address,
            httpx2.AsyncClient(proxy=address.origin, verify=trusting(server)) as client,
        ):
            reply = await client.get("https://ai-gateway.vercel.sh/v1/models", headers={"Authorization": "Bearer k"})
        assert reply.text == "model\n"
        assert asked[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
        assert b"host: ai-gateway.vercel.sh\r\n" in asked[0].lower()


async def test_an_upstream_that_is_not_there_is_told(server: Server) -> None:
    async with upstream() as (at, _):
        pass
    how = Listening(mapped={"ai-gateway.vercel.sh": at})
    async with listening(server, how) as address:
        reply = await said(address, b"CONNECT ai-gateway.vercel.sh:443 HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 502 ")


async def test_a_client_that_does_not_trust_us_gets_no_answer_and_hurts_nobody(address: Address) -> None:
    async with httpx2.AsyncClient(proxy=address.origin, timeout=60) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"{CONTROL}/api/tokens")
    async with httpx2.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{address.origin}/openapi.json")).status_code == 200


async def test_with_tls_the_port_speaks_it_under_every_name(server: Server, key: str) -> None:
    """The second recipe: names of this machine that lead to the port. Here the client is told the address instead."""
    async with upstream() as (at, asked):
        how = Listening(tls=True, mapped={"ai-gateway.vercel.sh": at})
        async with listening(server, how) as address:
            assert address.origin.startswith("https://127.0.0.1:")

            async def get(host: str, path: str) -> httpx2.Response:
                headers = {"Host": host, "Authorization": key}
                async with httpx2.AsyncClient(verify=trusting(server)) as client:
                    url = f"{address.origin}{path}"
                    return await client.get(url, headers=headers, extensions={"sni_hostname": host})

            assert (await get("127.0.0.1", "/openapi.json")).status_code == 200
            assert (await get(CONTROL.removeprefix("https://"), "/api/tokens")).status_code == 200
            assert (await get("ai-gateway.vercel.sh", "/v1/models")).text == "model\n"
            assert len(asked) == 1


async def test_with_tls_the_proxy_is_one_too(server: Server, key: str) -> None:
    async with listening(server, Listening(tls=True)) as address:
        proxy = httpx2.Proxy(address.origin, ssl_context=trusting(server))
        for origin in (CONTROL, address.origin):
            async with httpx2.AsyncClient(proxy=proxy, verify=trusting(server)) as client:
                reply = await client.get(f"{origin}/api/tokens", headers={"Authorization": key})
                assert reply.status_code == 200


async def test_a_certificate_of_ones_own_is_shown_to_those_who_come_directly(server: Server, tmp_path: Path) -> None:
    other = tmp_path / "other"
    own_context(other, ["127.0.0.1"])
    pem = other / "server" / "server.pem"
    how = Listening(tls=True, certificate=pem, key=pem)
    async with listening(server, how) as address:
        theirs = ssl.create_default_context(cafile=str(ca_path(other)))
        async with httpx2.AsyncClient(verify=theirs) as client:
            assert (await client.get(f"{address.origin}/openapi.json")).status_code == 200
        async with httpx2.AsyncClient(verify=trusting(server)) as client:
            host = CONTROL.removeprefix("https://")
            reply = await client.get(
                f"{address.origin}/openapi.json", headers={"Host": host}, extensions={"sni_hostname": host}
            )
            assert reply.status_code == 200


@pytest.mark.parametrize("content", [b"", b"no PEM"])
async def test_a_certificate_that_is_none_is_told_before_anything_starts(
    server: Server, tmp_path: Path, content: bytes
) -> None:
    pem = tmp_path / "broken.pem"
    pem.write_bytes(content)
    with pytest.raises(ConfigError, match="broken.pem"):
        async with listening(server, Listening(tls=True, certificate=pem, key=pem)):
            pass


async def test_the_ca_stays_the_same_and_its_key_is_its_users_alone(server: Server) -> None:
    async with listening(server, Listening()):
        first = ca_path(server.home).read_bytes()
    async with listening(server, Listening()):
        assert ca_path(server.home).read_bytes() == first
    assert trusted_path(server.home).read_bytes().startswith(first)
    for name in ("ca.key", "server.pem"):
        assert (server.home / "server" / name).stat().st_mode & 0o777 == 0o600


async def test_a_damaged_ca_is_told_with_the_mend(server: Server) -> None:
    (server.home / "server" / "ca.key").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="delete it"):
        async with listening(server, Listening()):
            pass


async def test_a_port_in_use_is_told_with_the_mend(server: Server, address: Address) -> None:
    with pytest.raises(ConfigError, match="--port"):
        async with listening(server, Listening(port=address.port)):
            pass


async def test_the_vendors_python_client_runs_unmodified_by_the_environment_alone(
    server: Server, address: Address, key: str
) -> None:
    pytest.importorskip("archil")
    running = running_server(server.home)
    assert running == Running(address)
    pointed = dict(line.removeprefix("export ").split("=", 1) for line in exports(server.home, running, by_hosts=False))
    code = """if True:
        import archil
        made = archil.create_api_key(name="mine", description="by the client")
        print(made.token[:4], [each.name for each in archil.list_api_keys()])
        archil.delete_api_key(made.id)
        print([each.name for each in archil.list_api_keys()])
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code,
        env={"PATH": os.environ["PATH"], **pointed, "ARCHIL_API_KEY": key},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines() == ["key- ['tests', 'mine']", "['tests']"]
