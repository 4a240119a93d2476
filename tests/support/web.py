"""Servers on this machine's loopback for tests of networks: HTTP, TLS, and raw TCP."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A TCP server; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Web:
    """An HTTP server that answers every request with its head and body, and keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        body = b""
        lines = head.lower().split(b"\r\n")
        for line in lines:
            if line.startswith(b"content-length:"):
                body = await reader.readexactly(int(line.partition(b":")[2]))
        while b"transfer-encoding: chunked" in lines and not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\n")
        self.heard.append(head + body)
        text = b"hello " + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(text), text))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers what it hears."""
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


def certificate(directory: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context for the names, and the file of its certificate, made by openssl."""
    key, cert = directory / "key.pem", directory / "cert.pem"
    listed = ",".join(f"DNS:{name}" for name in names)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", str(key), "-out", str(cert), "-subj", "/CN=forkyard", "-addext", f"subjectAltName={listed}"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert
