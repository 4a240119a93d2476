"""What a sandbox tries at its door: ways to hosts that are not allowed, and more of this process than its share."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forkyard.sandbox import PUBLIC, Network
from forkyard.sandbox.network.door import Door
from forkyard.sandbox.network.links import Bounds
from tests.support.web import Web, certificate, echo, served

BOUNDS = Bounds()
NAMES = {"good.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "meta.test": ["169.254.169.254"]}


async def look_up(name: str) -> Sequence[str]:
    if name not in NAMES:
        raise OSError("no such name")
    return NAMES[name]


@asynccontextmanager
async def door_to(network: Network, resolve: object = look_up, bounds: Bounds = BOUNDS) -> AsyncIterator[Door]:
    door = Door(socket.create_server(("127.0.0.1", 0)), network, resolve=resolve, bounds=bounds)  # type: ignore[arg-type]
    try:
        yield door
    finally:
        await door.close()


def allowing(port: int, *hosts: str) -> Network:
    """The hosts at that port, and loopback addresses behind them."""
    return Network("allowlist", (*(f"{host}:{port}" for host in hosts), f"127.0.0.0/8:{port}"))


def tls_only(port: int, *hosts: str) -> Network:
    """All hosts at all ports but a blocked one: tunnels have to be TLS made out to the name asked for."""
    return Network("public", (f"127.0.0.0/8:{port}",), ("blocked.test",))


async def say(door: Door, data: bytes, end: bool = False) -> bytes:
    """All that comes back to what is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(100):
            return await reader.read(-1)
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.transport.abort()


def refused(door: Door) -> list[tuple[str, str | None]]:
    return [(visit.host, visit.refused) for visit in door.visits if visit.refused]


async def test_an_allowed_host_is_reached_and_others_are_refused_and_recorded() -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        answer = await say(door, b"GET http://good.test:%d/x?y HTTP/1.1\r\nHost: good.test\r\n\r\n" % port)
        assert answer.endswith(b"\r\n\r\nhello ")
        assert web.heard[0].startswith(b"GET /x?y HTTP/1.1\r\nHost: good.test:%d\r\n" % port)
        answer = await say(door, b"GET http://other.test:%d/ HTTP/1.1\r\n\r\n" % port)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"not on the network's allowlist" in answer
        assert refused(door) == [("other.test", "it is not on the network's allowlist")]
        assert [(visit.host, visit.refused) for visit in door.visits][0] == ("good.test", None)
        assert web.connections == 1


@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.1", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
                                  "2130706433", "0x7f.1", "127.1", "[64:ff9b::7f00:1]", "[fe80::1]"])  # fmt: skip
async def test_no_spelling_of_an_address_of_the_host_gets_through_a_public_network(host: str) -> None:
    web = Web()

    async def system(name: str) -> Sequence[str]:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET)
        return [str(entry[4][0]) for entry in found]

    async with served(web) as port, door_to(PUBLIC, system) as door:
        for request in (b"GET http://%b:%d/ HTTP/1.1\r\n\r\n", b"CONNECT %b:%d HTTP/1.1\r\n\r\n"):
            answer = await say(door, request % (host.encode(), port))
            assert answer.startswith(b"HTTP/1.1 403 "), answer
        assert web.connections == 0


async def test_a_name_that_leads_to_a_private_address_is_refused() -> None:
    async with door_to(Network("allowlist", ("meta.test",))) as door:
        answer = await say(door, b"GET http://meta.test/latest HTTP/1.1\r\n\r\n")
        assert b"its address 169.254.169.254 is not a public one" in answer
        assert refused(door)[0][0] == "meta.test"


async def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_connected_to() -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1"]])
    asked = []

    async def rebinding(name: str) -> Sequence[str]:
        asked.append(name)
        return next(answers)

    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test"), rebinding) as door:
        request = b"GET http://good.test:%d/ HTTP/1.1\r\n\r\n" % port
        assert b"hello" in await say(door, request)
        assert asked == ["good.test"]
        assert (await say(door, request)).startswith(b"HTTP/1.1 403 ")
        assert len(asked) == 2


async def test_this_machines_own_address_is_refused_though_it_may_look_public() -> None:
    async with door_to(PUBLIC) as door:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        answer = await say(door, b"CONNECT %b:22 HTTP/1.1\r\n\r\n" % own.encode())
        assert answer.startswith(b"HTTP/1.1 403 ")


async def tls_through(door: Door, port: int, ask: str, name: str, cert: Path) -> bytes:
    """A TLS connection through the door: a tunnel to `ask`, made out to `name`; what an echo answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        writer.write(f"CONNECT {ask}:{port} HTTP/1.1\r\nHost: {ask}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            return head
        await writer.start_tls(ssl.create_default_context(cafile=cert), server_hostname=name)
        writer.write(b"secret")
        return await reader.read(100)
    finally:
        writer.transport.abort()


async def test_tls_goes_through_when_it_is_made_out_to_the_name_that_was_asked_for(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path, "good.test", "other.test")
    async with served(echo, context) as port, door_to(tls_only(port)) as door:
        assert await tls_through(door, port, "good.test", "good.test", cert) == b"secret"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await tls_through(door, port, "good.test", "other.test", cert)
        assert refused(door) == [("good.test", "its tunnel is closed: the TLS in it is for other.test")]


async def test_a_tunnel_that_is_no_tls_is_closed_before_the_server_hears_of_it() -> None:
    web = Web()
    async with served(web) as port, door_to(tls_only(port)) as door:
        tunnel = b"CONNECT good.test:%d HTTP/1.1\r\n\r\n" % port
        for inner in (
            b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
            b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
            b"\x16\x03",
        ):
            answer = await say(door, tunnel + inner, end=True)
            assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert web.heard == []
        assert {reason for _, reason in refused(door)} == {
            "its tunnel is closed: what is sent is not TLS",
            "its tunnel is closed: it does not begin as TLS does",
            "its tunnel is closed: it ended before it said for whom it is",
        }


async def test_tls_that_names_nobody_is_closed(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path, "good.test")
    async with served(echo, context) as port, door_to(tls_only(port)) as door:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await tls_through(door, port, "good.test", "127.0.0.1", cert)
        assert refused(door) == [("good.test", "its tunnel is closed: the TLS in it is for nobody")]


async def test_a_port_that_the_list_names_carries_any_protocol() -> None:
    async with served(echo) as port, door_to(allowing(port, "good.test")) as door:
        answer = await say(door, b"CONNECT good.test:%d HTTP/1.1\r\n\r\nanything" % port, end=True)
        assert answer.endswith(b"\r\n\r\nanything")


async def test_the_host_header_is_that_of_the_address_whatever_the_client_says() -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: other.test\r\nhost: third.test\r\n\r\n" % port
        assert b"hello" in await say(door, request)
        assert web.heard[0].lower().count(b"host:") == 1
        assert b"Host: good.test:%d\r\n" % port in web.heard[0]


async def test_only_the_first_request_of_a_connection_is_passed_on() -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        one = b"POST http://good.test:%d/one HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody" % port
        two = b"GET http://other.test:%d/two HTTP/1.1\r\n\r\n" % port
        answer = await say(door, one + two)
        assert answer.endswith(b"hello body")
        assert web.connections == 1
        assert b"two" not in web.heard[0]
        assert b"Connection: close" in web.heard[0]


async def test_a_body_in_chunks_arrives_whole_and_nothing_behind_it() -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        head = b"POST http://good.test:%d/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n" % port
        chunks = b"5;evil=1\r\nhello\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
        assert b"hello" in await say(door, head + chunks)
        assert web.heard[0].endswith(b"5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\x0bchunked",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length: -1",
        b"Content-Length: 0x5",
        b"X: a\nHost: other.test",
        b"X: a\rY: b",
        b"X: a\r\n folded",
        b"X: \x00",
        b"No colon",
        b": no name",
    ],
)
async def test_a_head_that_could_be_read_in_two_ways_is_refused(headers: bytes) -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        request = b"POST http://good.test:%d/ HTTP/1.1\r\n%b\r\n\r\n5\r\nhello\r\n0\r\n\r\n" % (port, headers)
        assert (await say(door, request)).startswith(b"HTTP/1.1 400 ")
        assert web.connections == 0


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"GET https://good.test/ HTTP/1.1",
        b"GET http://good.test@other.test/ HTTP/1.1",
        b"GET http://good.test\\@other.test/ HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://good.test:0/ HTTP/1.1",
        b"GET http://good.test:99999/ HTTP/1.1",
        b"GET http://good.test:8x/ HTTP/1.1",
        b"GET http://good.test/ HTTP/2.0",
        b"GET  http://good.test/ HTTP/1.1",
        b"CONNECT good.test HTTP/1.1",
        b"CONNECT good.test:443:22 HTTP/1.1",
        b"CONNECT g\xc3\xb6\xc3\xb6d.test:443 HTTP/1.1",
        b"\x00\x01\x02",
        b"SSH-2.0-x",
    ],
)
async def test_what_is_no_request_to_a_proxy_is_refused(line: bytes) -> None:
    async with door_to(Network("allowlist", ("good.test",))) as door:
        assert (await say(door, line + b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_broken_chunk_ends_the_connection() -> None:
    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test")) as door:
        head = b"POST http://good.test:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % port
        for chunks in (
            b"zz\r\n",
            b"-1\r\n",
            b"5\r\nhelloXX",
            b"\n5\r\nhello\r\n",
            b"fffffffffffffffff\r\n",
            b"5;" + b"x" * 4000,
        ):
            assert b"400" in await say(door, head + chunks, end=True)
        assert web.heard == []


async def test_a_head_larger_than_its_bound_is_refused() -> None:
    async with door_to(Network("allowlist", ("good.test",))) as door:
        answer = await say(door, b"GET http://good.test/ HTTP/1.1\r\nX: " + b"a" * 100_000)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b"reset"
        assert door.connections <= 1


async def test_a_client_that_dawdles_is_dropped() -> None:
    async with door_to(PUBLIC, bounds=Bounds(head=0.2)) as door:
        for start in (b"", b"GET http://good", b"\x05\x02"):
            assert await say(door, start) == b""
        assert door.connections == 0


async def test_a_tunnel_in_which_nothing_moves_is_closed() -> None:
    async with served(echo) as port, door_to(allowing(port, "good.test"), bounds=Bounds(idle=1.0)) as door:
        answer = await say(door, b"CONNECT good.test:%d HTTP/1.1\r\n\r\nonce" % port)
        assert answer.endswith(b"once")


async def test_no_tunnel_lives_longer_than_its_total() -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with served(chatter) as port, door_to(allowing(port, "good.test"), bounds=Bounds(total=1.0)) as door:
        assert (await say(door, b"CONNECT good.test:%d HTTP/1.1\r\n\r\n" % port)).endswith(b".")


async def test_a_thousand_connections_take_no_more_than_their_bound_and_leave_nothing() -> None:
    async with served(echo) as port, door_to(allowing(port, "good.test"), bounds=Bounds(connections=20)) as door:
        tunnel = b"CONNECT good.test:%d HTTP/1.1\r\n\r\n" % port
        open_ones = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(20)]
        for reader, writer in open_ones:
            writer.write(tunnel)
            await reader.readuntil(b"\r\n\r\n")
        for _ in range(1000):
            _, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.transport.abort()
        assert await say(door, tunnel) in (b"", b"reset")
        assert door.connections == 20
        for _, writer in open_ones:
            writer.transport.abort()
        async with asyncio.timeout(100):
            while door.connections:
                await asyncio.sleep(0)
        assert (await say(door, tunnel + b"again", end=True)).endswith(b"again")


async def test_a_half_closed_connection_still_gets_its_answer() -> None:
    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(b"got " + data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with served(after_the_end) as port, door_to(allowing(port, "good.test")) as door:
        answer = await say(door, b"CONNECT good.test:%d HTTP/1.1\r\n\r\nall" % port, end=True)
        assert answer.endswith(b"got all")


async def test_a_change_of_the_network_cuts_what_it_does_not_allow_and_nothing_else() -> None:
    async with served(echo) as port, door_to(allowing(port, "good.test", "other.test")) as door:
        streams = {}
        for name in ("good.test", "other.test"):
            streams[name] = reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(f"CONNECT {name}:{port} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        await door.change(allowing(port, "good.test"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await streams["other.test"][0].readexactly(1)
        streams["good.test"][1].write(b"still")
        assert await streams["good.test"][0].readexactly(5) == b"still"
        await door.change(tls_only(port))  # which lets nothing pass unseen
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await streams["good.test"][0].readexactly(1)
        for _, writer in streams.values():
            writer.transport.abort()


async def test_a_change_reaches_a_connection_that_is_only_being_made() -> None:
    resolving, go_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> Sequence[str]:
        resolving.set()
        await go_on.wait()
        return ["127.0.0.1"]

    web = Web()
    async with served(web) as port, door_to(allowing(port, "good.test"), slow) as door:
        asking = asyncio.create_task(say(door, b"GET http://good.test:%d/ HTTP/1.1\r\n\r\n" % port))
        await resolving.wait()
        await door.change(allowing(port, "other.test"))
        go_on.set()
        assert await asking in (b"", b"reset")
        assert web.connections == 0


async def test_socks_is_judged_by_the_same_rules() -> None:
    async with served(echo) as port, door_to(allowing(port, "good.test")) as door:
        asked = b"\x05\x01\x00\x05\x01\x00\x03\x09good.test" + port.to_bytes(2, "big")
        answer = await say(door, asked + b"over", end=True)
        assert answer == b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6) + b"over"
        other = b"\x05\x01\x00\x05\x01\x00\x03\x0aother.test" + port.to_bytes(2, "big")
        assert (await say(door, other))[2:4] == b"\x05\x02"
        meta = b"\x05\x01\x00\x05\x01\x00\x01" + bytes((169, 254, 169, 254)) + b"\x00\x50"
        assert (await say(door, meta))[2:4] == b"\x05\x02"
        assert await say(door, b"\x05\x01\x02") == b"\x05\xff"
        assert (await say(door, b"\x05\x01\x00\x05\x02\x00\x01" + bytes(6)))[2:4] == b"\x05\x02"


async def test_a_record_of_what_was_asked_for_stays_small() -> None:
    async with door_to(Network("allowlist", ("good.test",))) as door:
        for number in range(300):
            door.visits.record(f"h{number}.test", 443, "it is not on the network's allowlist")
        assert len(list(door.visits)) == 200


async def test_a_closed_door_cuts_a_transfer_and_leaves_no_task() -> None:
    before = len(asyncio.all_tasks())
    async with served(echo) as port:
        async with door_to(allowing(port, "good.test")) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(b"CONNECT good.test:%d HTTP/1.1\r\n\r\n" % port)
            await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.transport.abort()
    assert len(asyncio.all_tasks()) == before
