"""Rules of a network: headers that are added on the way out, and requests that go elsewhere. The guest is hostile."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import NO_NETWORK, Network, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.network import Rule
from tests.support.web import Web, certificate, served

SECRET = "sk-0123456789-of-nobody"
AUTHORIZATION = (("Authorization", f"Bearer {SECRET}"),)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server that is called localhost speaks TLS with; this machine trusts it."""
    context, file = certificate(tmp_path, "localhost", "api.localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return context


@asynccontextmanager
async def box_on(local: LocalProvider, network: Network) -> AsyncIterator[Sandbox]:
    sandbox = await local.create(SandboxSpec(network=network))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def out(box: Sandbox, command: str, **env: str) -> str:
    result = await box.run(command, {"no_proxy": "", "NO_PROXY": "", **env}, timeout=60)
    return result.stdout + result.stderr


def to(*ports: int, rules: tuple[Rule, ...] = (), **more: tuple[str, ...]) -> Network:
    """This machine's loopback at some ports, with rules."""
    hosts = tuple(f"{host}:{port}" for host in ("localhost", "127.0.0.0/8", "api.localhost") for port in ports)
    return Network("allowlist", hosts, rules=rules, **more)


def ruled(port: int, **more: str) -> Network:
    return to(port, rules=(Rule(f"localhost:{port}", AUTHORIZATION, **more),))


async def test_a_header_is_added_in_tls_and_the_guest_sees_none_of_it(
    local: LocalProvider, tls: ssl.SSLContext
) -> None:
    web = Web()
    async with served(web, tls) as port, box_on(local, ruled(port)) as box:
        url = f"https://localhost:{port}/v1/models?x=1"
        assert await out(box, f"curl -sS -H 'Authorization: Bearer mine' -d body {url}") == "hello body"
        head = web.heard[0]
        assert head.startswith(b"POST /v1/models?x=1 HTTP/1.1\r\n")
        assert f"\r\nAuthorization: Bearer {SECRET}\r\n".encode() in head and b"mine" not in head
        assert f"\r\nHost: localhost:{port}\r\n".encode() in head
        script = f"import urllib.request as u; print(u.urlopen('{url}').read())"
        assert await out(box, f'python3 -c "{script}"') == "b'hello '\n"
        assert f"Bearer {SECRET}".encode() in web.heard[1]
        told = await out(
            box, "env; cat /proc/*/environ /proc/*/cmdline; grep -rsF -- sk-0123456789 /etc /root /tmp /usr/local"
        )
        assert "SSL_CERT_FILE" in told and SECRET not in told
        assert SECRET not in repr(box.visits) + repr(ruled(port))


async def test_what_the_guest_sends_by_that_name_is_replaced_however_it_is_written(
    local: LocalProvider, tls: ssl.SSLContext
) -> None:
    web = Web()
    rule = (("X-Api-Key", SECRET),)
    async with served(web, tls) as port, box_on(local, to(port, rules=(Rule(f"localhost:{port}", rule),))) as box:
        mine = "-H 'x-api-KEY: mine' -H 'X_Api_Key: mine' -H 'Connection: X-Api-Key' -H 'Host: evil.example'"
        assert await out(box, f"curl -sS {mine} https://localhost:{port}/") == "hello "
    head = web.heard[0]
    assert head.lower().count(b"api") == 1 and b"mine" not in head and b"evil" not in head
    assert f"X-Api-Key: {SECRET}".encode() in head


async def test_headers_leave_in_tls_alone_unless_the_target_names_its_port(
    local: LocalProvider, tls: ssl.SSLContext
) -> None:
    plain, web = Rule("api.localhost", AUTHORIZATION), Web()
    network = Network("allowlist", ("api.localhost", "127.0.0.0/8:80"), rules=(plain,))
    async with served(web) as port, box_on(local, network) as box:
        assert "ask for https://api.localhost" in await out(box, "curl -sS http://api.localhost/")
        await box.set_network(ruled(port))
        assert await out(box, f"curl -sS http://localhost:{port}/") == "hello "
        assert "may not be reached" in await out(box, "curl -sS http://api.localhost/")
    assert f"Bearer {SECRET}".encode() in web.heard[0] and len(web.heard) == 1


async def test_a_server_is_not_asked_to_say_what_it_heard(local: LocalProvider, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web, tls) as port, box_on(local, ruled(port)) as box:
        assert "405" in await out(box, f"curl -sS -i -X TRACE https://localhost:{port}/")
    assert web.heard == []


async def test_a_server_that_is_another_gets_nothing(local: LocalProvider, tls: ssl.SSLContext, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, _ = certificate(tmp_path / "other", "localhost")
    web = Web()
    async with served(web, other) as port, box_on(local, ruled(port)) as box:
        assert "502" in await out(box, f"curl -sS https://localhost:{port}/")
        assert box.visits[0].host == "localhost"
    assert web.heard == []


RAW = r"""
import socket, ssl, sys
port, mode = int(sys.argv[1]), sys.argv[2]
def tunnel(target):
    sock = socket.create_connection(("127.0.0.1", 3128), 5)
    sock.settimeout(5)
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    return sock, sock.recv(4096).split(b"\r\n")[0]
try:
    if mode == "plain in a tunnel":
        sock, said = tunnel(f"localhost:{port}")
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        print(said, sock.recv(4096))
    elif mode == "early":
        sock = socket.create_connection(("127.0.0.1", 3128), 5)
        sock.sendall(f"CONNECT localhost:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode())
        print(sock.recv(4096).split(b"\r\n")[0])
    elif mode == "another name":
        sock, said = tunnel(f"localhost:{port}")
        tls = ssl.create_default_context().wrap_socket(sock, server_hostname="evil.example")
    elif mode == "smuggled":
        sock, said = tunnel(f"localhost:{port}")
        tls = ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
        tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc")
        print(tls.recv(4096))
    elif mode == "pipelined":
        sock, said = tunnel(f"localhost:{port}")
        tls = ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
        tls.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        said = b""
        while piece := tls.recv(4096):
            said += piece
        print(said.count(b"HTTP/1.1"))
except OSError as err:
    print(type(err).__name__, err)
"""


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        ("plain in a tunnel", "200"),
        ("early", "400"),
        ("another name", "SSLCertVerificationError"),
        ("smuggled", "400 Bad Request"),
        ("pipelined", "1"),
    ],
)
async def test_a_guest_that_goes_round_it_gets_nothing(
    local: LocalProvider, tls: ssl.SSLContext, mode: str, answer: str
) -> None:
    web = Web()
    async with served(web, tls) as port, box_on(local, ruled(port)) as box:
        said = await box.run(["python3", "-c", RAW, str(port), mode], timeout=20)
        assert answer in said.stdout and SECRET not in said.stdout, said
    assert len(web.heard) == (mode == "pipelined")


async def test_hosts_without_a_rule_are_not_looked_into(
    local: LocalProvider, tls: ssl.SSLContext, tmp_path: Path
) -> None:
    web, file = Web(), tmp_path / "cert.pem"
    async with AsyncExitStack() as stack:
        port, other = [await stack.enter_async_context(served(web, tls)) for _ in range(2)]
        network = to(port, other, rules=(Rule(f"localhost:{port}", AUTHORIZATION),))
        box = await stack.enter_async_context(box_on(local, network))
        assert "self-signed certificate\n" in await out(box, f"curl -sS https://localhost:{other}/")
        await box.write("/cert.pem", file.read_bytes())
        said = await out(box, f"curl -sS --cacert /cert.pem https://localhost:{other}/")
        assert said == "hello " and SECRET.encode() not in b"".join(web.heard)
        said = await out(box, f"curl -sS --cacert /cert.pem https://localhost:{port}/")
        assert "self-signed" in said or "unable to get local issuer" in said


async def test_requests_are_forwarded_and_say_for_whom_they_are(local: LocalProvider, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web) as port:
        rule = Rule("api.example.com", AUTHORIZATION, forward=f"http://127.0.0.1:{port}/base/")
        async with box_on(local, Network("allowlist", ("api.example.com",), rules=(rule,))) as box:
            assert await out(box, "curl -sS https://api.example.com/v1/x") == "hello "
            assert await out(box, "curl -sS http://api.example.com/v1/y") == "hello "
            assert "may not be reached" in await out(box, f"curl -sS http://127.0.0.1:{port}/")
            await box.set_network(Network("allowlist", ("api.example.com",), ("api.example.com",), rules=(rule,)))
            assert "block list" in await out(box, "curl -sS http://api.example.com/v1/z")
    first, second = (head.decode() for head in web.heard)
    assert first.startswith("GET /base/v1/x ") and second.startswith("GET /base/v1/y ")
    assert f"Host: 127.0.0.1:{port}\r\n" in first and "X-Forwarded-Host: api.example.com\r\n" in first
    assert "X-Forwarded-Proto: https\r\n" in first and "X-Forwarded-Proto: http\r\n" in second


async def test_forks_and_restarts_trust_an_authority_of_their_own(local: LocalProvider, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web, tls) as port, box_on(local, ruled(port)) as box:
        ask = f"curl -sS https://localhost:{port}/"
        await box.stop()
        fork = await box.fork()
        try:
            await box.start()
            assert [await out(each, ask) for each in (box, fork)] == ["hello ", "hello "]
            files = [await each.read("/usr/local/share/ca-certificates/forkyard.crt") for each in (box, fork)]
            assert files[0] != files[1] and b"PRIVATE" not in files[0]
            await fork.set_network(to(port))
            assert "SSL_CERT_FILE" not in await out(fork, "env")
        finally:
            await fork.close()


async def test_the_images_own_bundle_has_it_while_there_is_a_rule(local: LocalProvider, tls: ssl.SSLContext) -> None:
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    async with box_on(local, NO_NETWORK) as box:
        await box.write(bundle, b"# whom the image trusts")
        for _ in range(2):
            await box.set_network(ruled(1))
            whole = await box.read(bundle)
            assert whole.startswith(b"# whom the image trusts\n# forkyard") and whole.count(b"BEGIN CERTIFICATE") == 1
            assert await box.read("/etc/forkyard/trusted.pem") == whole
            await box.set_network(NO_NETWORK)
            assert await box.read(bundle) == b"# whom the image trusts\n"


async def test_a_bundle_that_is_no_file_is_left_alone(local: LocalProvider, tls: ssl.SSLContext) -> None:
    web = Web()
    async with served(web, tls) as port, box_on(local, NO_NETWORK) as box:
        await out(box, "mkdir -p /etc/ssl/certs; mkfifo /etc/ssl/certs/ca-certificates.crt")
        await box.set_network(ruled(port))
        assert await out(box, f"curl -sS https://localhost:{port}/") == "hello "


async def upgraded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if SECRET.encode() not in head or b"/no" in head:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    while piece := await reader.read(100):
        writer.write(piece.upper())
        await writer.drain()


async def test_a_web_socket_is_asked_for_with_the_header_too(local: LocalProvider, tls: ssl.SSLContext) -> None:
    script = """
import socket, ssl, sys
sock = socket.create_connection(("127.0.0.1", 3128), 5)
sock.sendall(f"CONNECT localhost:{sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
sock.recv(4096)
tls = ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
lines = [f"GET {sys.argv[2]} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade", "", "abc"]
tls.sendall("\\r\\n".join(lines).encode())
said = b""
while b"ABC" not in said and (piece := tls.recv(4096)):
    said += piece
print(said)
"""
    async with served(upgraded, tls) as port, box_on(local, ruled(port)) as box:
        said = (await box.run(["python3", "-c", script, str(port), "/yes"], timeout=20)).stdout
        assert "101 Switching" in said and "ABC" in said
        said = (await box.run(["python3", "-c", script, str(port), "/no"], timeout=20)).stdout
        assert "200 OK" in said and "ABC" not in said


async def test_a_change_of_its_rule_cuts_a_connection_and_others_go_on(
    local: LocalProvider, tls: ssl.SSLContext
) -> None:
    begun = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        begun.set()
        await reader.read()

    async with served(endless, tls) as port, box_on(local, ruled(port)) as box:
        loading = asyncio.create_task(out(box, f"curl -sS https://localhost:{port}/"))
        await begun.wait()
        await box.set_network(to(port, 1, rules=(Rule(f"localhost:{port}", AUTHORIZATION),)))
        assert not loading.done()
        changed = (("Authorization", "Bearer other"),)
        await box.set_network(to(port, rules=(Rule(f"localhost:{port}", changed),)))
        assert "curl: " in await loading


async def test_connections_are_waited_for_by_host(local: LocalProvider) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await end.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")
        await writer.drain()

    async with served(slow) as port, box_on(local, to(port, drain=("127.0.0.0/8", "localhost"))) as box:
        await box.drained()  # type: ignore[attr-defined]
        loading = asyncio.create_task(out(box, f"curl -sS http://localhost:{port}/"))
        await begun.wait()
        drained = asyncio.create_task(box.drained())  # type: ignore[attr-defined]
        _, waiting = await asyncio.wait({drained}, timeout=0.05)
        assert waiting
        end.set()
        await asyncio.wait_for(drained, 100)
        assert await loading == "done"


@pytest.mark.parametrize(
    ("headers", "forward", "told"),
    [
        ((), None, "changes nothing"),
        ((("Host", "x"),), None, "'Host' is no header"),
        ((("a b", "x"),), None, "is no header"),
        ((("Key", f"{SECRET}\r\nHost: evil"),), None, "the value of Key"),
        ((("Key", f"{SECRET} "),), None, "the value of Key"),
        ((("X-Key", SECRET), ("x_key", SECRET)), None, "sets a header twice"),
        ((), "ftp://example.com", "no address to forward"),
        ((), f"https://user:{SECRET}@example.com", "no address to forward"),
        ((), "http://example.com:99999/", "no address to forward"),
        ((), "http://example.com/\r\nx", "no address to forward"),
        ((), "http:///path", "no address to forward"),
        ((), "http://example.com/?q", "no address to forward"),
    ],
)
def test_what_no_rule_can_do_is_refused_without_a_word_of_the_secret(
    headers: tuple[tuple[str, str], ...], forward: str | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Rule("example.com", headers, forward)
    assert SECRET not in str(caught.value)


def test_rules_belong_to_networks_that_reach_something() -> None:
    with pytest.raises(ConfigError, match="reaches no host"):
        Network(rules=(Rule("example.com", AUTHORIZATION),))
    with pytest.raises(ConfigError, match="no host a network can name"):
        Network("public", rules=(Rule("http://example.com", AUTHORIZATION),))
