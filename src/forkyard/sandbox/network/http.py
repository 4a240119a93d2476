"""HTTP requests as a proxy gets them: read strictly, and written anew, so that nothing a server may read differently
from us is passed on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from forkyard.sandbox.network.policy import is_host_name, literal
from forkyard.sandbox.network.rules import comparable
from forkyard.sandbox.network.streams import PIECE, OnBytes, Stream

HEAD_LIMIT = 32 << 10
CHUNK_HEAD_LIMIT = 1 << 10

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer trailers "
    b"transfer-encoding upgrade".split()
)
"""Headers of a connection, which nobody passes on; beside them those that `named_in` finds."""
_NOT_KEPT = HOP_BY_HOP | {b"host", b"content-length"}  # those are written anew


class BadRequestError(Exception):
    """A request that is not answered by a server; `status` is what the client is told."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head. `length` is the size of its body, None for one in chunks."""

    method: bytes
    host: str
    port: int
    path: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    length: int | None
    tls: bool = False  # it goes to its server in TLS
    web_socket: bool = False  # it asks for one; known of requests that came in TLS alone

    @property
    def is_tunnel(self) -> bool:
        """Whether it asks for a connection instead of an answer."""
        return self.method == b"CONNECT"

    def head(self) -> bytes:
        """The head for the server: one host, one length, and the end of the connection after the answer."""
        lines = [
            self.method + b" " + self.path + b" HTTP/1.1",
            b"Host: " + authority(self.host, self.port, 443 if self.tls else 80).encode(),
        ]
        lines += [name + b": " + value for name, value in self.headers]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or self.method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"Content-Length: %d" % self.length)
        lines += [b"Connection: Upgrade", b"Upgrade: websocket"] if self.web_socket else [b"Connection: close"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def with_headers(self, headers: Iterable[tuple[str, str]]) -> Request:
        """The same request with these headers in the place of its own of the same names."""
        ours = tuple((name.encode(), value.encode()) for name, value in headers)
        names = {comparable(name) for name, _ in ours}
        return replace(self, headers=(*(each for each in self.headers if comparable(each[0]) not in names), *ours))


def authority(host: str, port: int, default: int) -> str:
    """A host and its port as they stand in an address."""
    name = f"[{host}]" if ":" in host else host
    return name if port == default else f"{name}:{port}"


async def read_request(
    reader: asyncio.StreamReader, first: bytes, within: tuple[str, int] | None = None
) -> Request | None:
    """The next request, whose first bytes were read already; None when the client went away. Raises BadRequestError.

    `within` is the host and port of the TLS connection it comes in; without it the request is one to a proxy.
    """
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequestError(f"a request's head may have {HEAD_LIMIT} bytes", 431) from None
    except asyncio.IncompleteReadError:
        return None
    return parse(head, within)


def parse(head: bytes, within: tuple[str, int] | None = None) -> Request:
    """A request's head, its last empty line included. Raises BadRequestError for all that could be read in two ways."""
    request_line, *lines = head[:-4].split(b"\r\n")
    parts = request_line.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not _TOKEN.fullmatch(parts[0]):
        raise BadRequestError("that is no HTTP/1 request")
    method, target = parts[0], parts[1]
    if not _TARGET.fullmatch(target):
        raise BadRequestError("the request's target holds characters that no address has")
    headers = [_header(line) for line in lines]
    length = _body_length(headers)
    named = named_in(headers)
    kept = tuple((name, value) for name, value in headers if name.lower() not in _NOT_KEPT | named)
    if within is None:
        host, port, path = _tunnel(target) if method == b"CONNECT" else _absolute(target)
        return Request(method, host, port, path, kept, length)
    if method == b"CONNECT" or not target.startswith(b"/"):
        raise BadRequestError("the request's target is no path")
    wanted = [value.lower() for name, value in headers if name.lower() == b"upgrade"]
    web_socket = wanted == [b"websocket"] and b"upgrade" in named and method == b"GET" and length == 0
    return Request(method, *within, target.partition(b"#")[0], kept, length, tls=True, web_socket=web_socket)


def named_in(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The headers that `Connection` says are of the connection too, in lower case."""
    said = (value for name, value in headers if name.lower() == b"connection")
    return {word.strip().lower() for value in said for word in value.split(b",")}


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequestError("a header line is malformed")
    return name, value.strip(b" \t")


def _body_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    if codings and (lengths or codings != [b"chunked"]):
        raise BadRequestError("the end of the request's body is ambiguous")
    if codings:
        return None
    if len(lengths) > 1 or (lengths and not re.fullmatch(rb"[0-9]{1,18}", lengths[0])):
        raise BadRequestError("the length of the request's body is ambiguous")
    return int(lengths[0]) if lengths else 0


def _tunnel(target: bytes) -> tuple[str, int, bytes]:
    return *_host_and_port(target, None), b""


def _absolute(target: bytes) -> tuple[str, int, bytes]:
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise BadRequestError("this is a proxy: ask it for http:// addresses, and for tunnels to all others")
    end = min((at for at in (rest.find(mark) for mark in (b"/", b"?", b"#")) if at >= 0), default=len(rest))
    path = rest[end:].partition(b"#")[0]
    return *_host_and_port(rest[:end], 80), path if path.startswith(b"/") else b"/" + path


def _host_and_port(text: bytes, default: int | None) -> tuple[str, int]:
    host, port = text.decode("ascii").lower(), default
    if not host.endswith("]") and ":" in host:
        host, _, digits = host.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,5}", digits):
            raise BadRequestError("the port is no number")
        port = int(digits)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return checked_host(host), checked_port(port)


def checked_host(text: str) -> str:
    """A host as it is compared: an address in its one spelling, or a name. Raises BadRequestError."""
    address = literal(text)
    if address is not None and "%" not in text:
        return str(address)
    name = text.lower().removesuffix(".")
    if not is_host_name(name.replace("_", "-")):
        raise BadRequestError("the host is neither a name nor an address")
    return name


def checked_port(port: int | None) -> int:
    """A port that can be connected to. Raises BadRequestError."""
    if port is None or not 0 < port < 65536:
        raise BadRequestError("the request names no port that exists")
    return port


async def send_body(request: Request, client: Stream, server: Stream, on_bytes: OnBytes) -> None:
    """Pass on exactly the body the head announces. Raises BadRequestError for chunks that are none."""
    if request.length is not None:
        await _copy(request.length, client, server, on_bytes)
        return
    while size := await _chunk_size(client.reader):
        await server.send(b"%x\r\n" % size)
        await _copy(size, client, server, on_bytes)
        if await client.reader.readexactly(2) != b"\r\n":
            raise BadRequestError("a chunk does not end where it should")
        await server.send(b"\r\n")
    while await _line(client.reader):  # trailers are not passed on
        pass
    await server.send(b"0\r\n\r\n")


async def _copy(count: int, client: Stream, server: Stream, on_bytes: OnBytes) -> None:
    while count:
        piece = await client.reader.read(min(PIECE, count))
        if not piece:
            raise BadRequestError("the request ended before its body did")
        on_bytes(len(piece))
        count -= len(piece)
        await server.send(piece)


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    size = (await _line(reader)).partition(b";")[0].rstrip(b" \t")
    if not _SIZE.fullmatch(size):
        raise BadRequestError("a chunk has no size")
    return int(size, 16)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequestError("a chunk's line is too long") from None
    except asyncio.IncompleteReadError:
        raise BadRequestError("the request ended before its body did") from None
    if len(line) > CHUNK_HEAD_LIMIT or b"\n" in line[:-2] or b"\r" in line[:-2]:
        raise BadRequestError("a chunk's line is malformed")
    return line[:-2]


def answer(status: int, reason: str) -> bytes:
    """An answer of the proxy itself."""
    titles = {
        400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
        502: "Bad Gateway",
    }  # fmt: skip
    body = f"forkyard: {reason}\n".encode()
    head = (
        f"HTTP/1.1 {status} {titles[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
