"""Connections below the calls: to providers, and of clients that are odd or hostile."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forkyard.gateway.connections import HEAD_LIMIT
from forkyard.gateway.pool import FAILURES, Pool, Reply
from tests.gateway.parts import stage
from tests.gateway.upstream import chat_body, whole

PATIENT = {"connect": 20.0, "read": 20.0, "write": 20.0, "pool": 20.0}
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    busy: set[asyncio.Task[None] | None] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await asyncio.gather(*(task for task in busy if task), return_exceptions=True)


@asynccontextmanager
async def pooled() -> AsyncIterator[Pool]:
    pool = Pool()
    try:
        yield pool
    finally:
        await pool.close()


async def body_of(reply: Reply) -> bytes:
    try:
        return b"".join([piece async for piece in reply.pieces])
    finally:
        await reply.aclose()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return head, await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))


async def test_a_request_is_one_packet_and_the_next_goes_over_the_same_connection() -> None:
    seen: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append([])
        while data := await reader.read(65_536):
            seen[-1].append(data)
            writer.write(OK)

    async with serving(serve) as url, pooled() as pool:
        for _ in range(3):
            assert await body_of(await pool.send("POST", url + "/x?a=b", [], b"{}", PATIENT)) == b"ok"
    (packets,) = seen
    assert len(packets) == 3 and {data[:17] for data in packets} == {b"POST /v1/x?a=b HT"}
    assert all(data.endswith(b"content-length: 2\r\n\r\n{}") for data in packets)


@pytest.mark.parametrize("afterwards", [b"", b"HTTP/1.1 408 Too Late\r\ncontent-length: 0\r\n\r\n"])
async def test_a_connection_on_which_something_came_unasked_is_not_used_again(afterwards: bytes) -> None:
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await read_request(reader)
        writer.write(OK + afterwards)

    async with serving(serve) as url, pooled() as pool:
        for number in (1, 2):
            reply = await pool.send("POST", url, [], b"{}", PATIENT)
            assert (reply.status, await body_of(reply), served) == (200, b"ok", number)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
            assert await reader.read()  # by then what came before it is here too
            writer.close()
            served -= 1


async def test_a_long_request_reaches_a_provider_that_reads_slowly() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(OK.replace(b"ok", b"%02d" % (len(body) // 1_000_000)))

    async with serving(serve) as url, pooled() as pool:
        assert await body_of(await pool.send("POST", url, [], b" " * 20_000_000, PATIENT)) == b"20"


async def test_a_reply_ends_at_its_deadline_however_long_its_pauses_may_be() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK[:-1])
        await reader.read()

    async with serving(serve) as url, pooled() as pool:
        reply = await pool.send("POST", url, [], b"{}", PATIENT)
        reply.end_by(asyncio.get_running_loop().time() + 0.05)
        with pytest.raises(FAILURES, match="nothing came in time"):
            await body_of(reply)


async def test_the_environments_proxy_is_asked_but_for_the_hosts_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader))[0])
        writer.write(OK)

    async with serving(serve) as url, pooled() as pool:
        monkeypatch.setenv("http_proxy", url.replace("//", "//user:word@").removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for place in ("http://provider.invalid/v1", url):
            assert await body_of(await pool.send("POST", place, [], b"{}", PATIENT)) == b"ok"
    assert heads[0].startswith(b"post http://provider.invalid/v1 ") and b"proxy-authorization: basic" in heads[0]
    assert heads[1].startswith(b"post /v1 ") and b"proxy" not in heads[1]


async def test_a_provider_is_spoken_to_encrypted_and_must_be_who_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*made.split(), "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)

    async with serving(serve, tls) as url:
        async with pooled() as pool:
            with pytest.raises(FAILURES, match="certificate"):
                await pool.send("POST", url, [], b"{}", PATIENT)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        async with pooled() as pool:
            for _ in range(2):
                assert await body_of(await pool.send("POST", url, [], b"{}", PATIENT)) == b"ok"


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"GET /", b"POST / HTTP/1.1\r\nx: "])
async def test_a_head_without_end_is_cut_off(start: bytes) -> None:
    async with stage(whole(chat_body())) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(at.url.rpartition(":")[2]))
        writer.write(
            b"GET /nothing HTTP/1.1\r\n\r\n"
        )  # the first request on a connection has a deadline, later ones not
        await reader.readuntil(b"not_found")
        sent = 0
        with pytest.raises(ConnectionError):
            writer.write(start)
            while sent < 64 * HEAD_LIMIT:
                piece = b"a" * 4096 if not start.endswith(b"\n") else b"x-a: b\r\n" * 512
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
        writer.close()


async def test_a_client_that_would_rather_speak_another_protocol_is_served_as_it_is() -> None:
    async with stage(whole(chat_body())) as at:
        odd = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
        for _ in range(2):
            reply = await at.client.post(
                "/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "x"}]}, headers=odd
            )
            assert (reply.status_code, reply.json()["choices"][0]["message"]["content"]) == (200, "hi")
