"""The first bytes of a connection: a request to this server, or a proxy's CONNECT to a host it stands for.

A client that knows no other address than the vendor's is told of this server as its HTTPS proxy. For the vendor's
hosts the proxy answers itself, with a certificate of our own CA; for mapped hosts it hands the decrypted requests to
an upstream; every other host is reached for those who show the proxy's password, and refused to everybody else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from forkyard.sandbox.network.streams import Stream, relay
from forkyard.server.hosts import is_vendor_host
from forkyard.server.outward import Outward
from forkyard.values import one_line

HEAD_LIMIT = 8192
HEAD_SECONDS = 30.0
IDLE_SECONDS = 600.0
DOORS = 1024
"""How many connections may wait for their first bytes at once."""
_CONNECT = b"CONNECT "


@dataclass(slots=True)
class Ways:
    """Where connections go. `serve` makes the protocol that answers requests."""

    serve: Callable[[], asyncio.Protocol]
    context: ssl.SSLContext  # for the hosts we stand for
    direct: frozenset[tuple[str, int]]  # our own addresses
    tls: bool  # our own addresses are spoken to in TLS
    zone: str
    mapped: Mapping[str, tuple[str, int]]
    outward: Outward
    head_seconds: float = HEAD_SECONDS  # until its first bytes have come
    names: WeakKeyDictionary[Any, str] = field(default_factory=WeakKeyDictionary)  # the name asked for, by TLS object
    doors: dict[Door, None] = field(default_factory=dict)  # in the order they came
    tunnels: set[asyncio.Task[None]] = field(default_factory=set)

    def stands_for(self, host: str) -> bool:
        """Whether we answer for this host ourselves."""
        return is_vendor_host(host) or host == self.zone or host.endswith(f".{self.zone}")

    def note_name(self, tls: Any, name: str | None, _: ssl.SSLContext) -> None:
        """A TLS handshake's callback: which host the client wants."""
        if name is not None:
            self.names[tls] = name.lower()

    def shut(self) -> None:
        """Cut connections on which nothing was asked yet."""
        for door in list(self.doors):
            door.abort()

    async def close(self) -> None:
        """Cut what is no request of ours."""
        self.shut()
        for task in list(self.tunnels):
            task.cancel()
        await asyncio.gather(*self.tunnels, return_exceptions=True)


class Door(asyncio.Protocol):
    """Reads the first bytes, and hands the connection on to who is meant."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._head = bytearray()
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection begins."""
        self._transport = transport
        if len(self._ways.doors) >= DOORS:  # who has waited longest gives way: who has something to say says it soon
            oldest = next(iter(self._ways.doors))
            oldest._leave()
            oldest.abort()
        self._ways.doors[self] = None
        self._patience = self._loop.call_later(self._ways.head_seconds, self.abort)
        tls = transport.get_extra_info("ssl_object")
        upstream = self._ways.mapped.get(self._ways.names.get(tls, "")) if tls is not None else None
        if upstream is not None:
            self._leave()
            self._spawn(self._passed_on(*upstream, _streamed(self._transport)))

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended before anything was asked."""
        self._leave()

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """More of the first bytes."""
        self._head += data
        if not _CONNECT.startswith(self._head[: len(_CONNECT)]):
            self._leave()
            _hand_over(self._transport, self._ways.serve(), bytes(self._head))
        elif b"\r\n\r\n" in self._head:
            self._leave()
            self._connect(bytes(self._head))
        elif len(self._head) > HEAD_LIMIT:
            self.abort()

    def _leave(self) -> None:
        self._ways.doors.pop(self, None)
        if self._patience is not None:
            self._patience.cancel()

    def _connect(self, head: bytes) -> None:
        target = _target(head)
        if target is None:
            self._refuse(b"400 Bad Request", "a CONNECT is `CONNECT host:port HTTP/1.1`, and waits for its answer")
            return
        host, port = target
        if self._is_own(host, port):
            if self._ways.tls:
                self._spawn(self._unwrapped())
            else:
                self._say_ready()
                _hand_over(self._transport, self._ways.serve(), b"")
        elif port == 443 and host in self._ways.mapped:
            self._spawn(self._mapped(*self._ways.mapped[host]))
        elif port == 443 and self._ways.stands_for(host):
            self._spawn(self._unwrapped())
        elif self._ways.outward.permits(head):
            self._spawn(self._outward(host, port))
        else:
            self._refuse(
                b"407 Proxy Authentication Required",
                f"this proxy does not stand for {one_line(host)}:{port}, and reaches other hosts for those alone who "
                "show the password in HTTPS_PROXY: `forkyard env` prints it; or name the host in NO_PROXY",
                b'proxy-authenticate: Basic realm="forkyard"\r\n',
            )

    def _is_own(self, host: str, port: int) -> bool:
        """Whether that is this server itself: its address, or the name of a port with the server's own."""
        own: tuple[str, int] = self._transport.get_extra_info("sockname")[:2]
        in_zone = host.endswith(f".{self._ways.zone}") and port == own[1]
        return (host, port) in self._ways.direct or (host, port) == own or in_zone

    def _say_ready(self) -> None:
        self._transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    def _refuse(self, status: bytes, text: str, headers: bytes = b"") -> None:
        body = f"{text}\n".encode()
        about = b"%bcontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (headers, len(body))
        self._transport.write(b"HTTP/1.1 " + status + b"\r\n" + about + body)
        self._transport.close()

    async def _unwrapped(self) -> None:
        """Speak TLS as the host that was asked for, and answer what is said in it."""
        self._say_ready()
        held = _Held()
        inner = await self._handshaken(held)
        if inner is not None:
            _hand_over(inner, self._ways.serve(), bytes(held.data))

    async def _mapped(self, host: str, port: int) -> None:
        try:
            upstream = Stream(*await asyncio.open_connection(host, port))
        except OSError as err:
            self._refuse(b"502 Bad Gateway", f"the upstream {host}:{port} cannot be reached: {err.strerror or err}")
            return
        try:
            self._say_ready()
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            inner = await self._handshaken(protocol)
            if inner is not None:
                protocol.connection_made(inner)
                await _relayed(Stream(reader, asyncio.StreamWriter(inner, protocol, reader, self._loop)), upstream)
        finally:
            upstream.abort()

    async def _outward(self, host: str, port: int) -> None:
        try:
            upstream = await self._ways.outward.reach(host, port)
        except OSError as err:
            self._refuse(b"502 Bad Gateway", f"{one_line(host)}:{port} cannot be reached: {err.strerror or err}")
            return
        try:
            if not self._transport.is_closing():  # else the client has left meanwhile
                self._say_ready()
                await _relayed(_streamed(self._transport), upstream)
        finally:
            upstream.abort()

    async def _passed_on(self, host: str, port: int, client: Stream) -> None:
        try:
            upstream = Stream(*await asyncio.open_connection(host, port))
        except OSError:
            client.abort()
            return
        await _relayed(client, upstream)

    async def _handshaken(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport | None:
        with suppress(OSError, TimeoutError):  # ssl.SSLError is an OSError: a client that does not trust us
            return await self._loop.start_tls(
                self._transport, protocol, self._ways.context, server_side=True, ssl_handshake_timeout=HEAD_SECONDS
            )
        self.abort()
        return None

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._ways.tunnels.add(task)
        task.add_done_callback(self._ways.tunnels.discard)


class _Held(asyncio.Protocol):
    """Keeps what comes until somebody takes it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data


def _hand_over(transport: Any, protocol: asyncio.Protocol, data: bytes) -> None:
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data:
        protocol.data_received(data)


def _streamed(transport: Any) -> Stream:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    _hand_over(transport, protocol, b"")
    return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop()))


async def _relayed(client: Stream, upstream: Stream) -> None:
    try:
        with suppress(OSError, TimeoutError):
            await relay(client, upstream, IDLE_SECONDS)
    finally:
        client.abort()
        upstream.abort()


def _target(head: bytes) -> tuple[str, int] | None:
    """The host and port of a CONNECT; None when it is none, or more than it has come already."""
    line, _, rest = head.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not rest.endswith(b"\r\n"):
        return None
    if not (head.endswith(b"\r\n\r\n") and head.find(b"\r\n\r\n") == len(head) - 4):
        return None
    host, colon, port = words[1].rpartition(b":")
    if not colon or not host or not port.isdigit() or len(port) > 5:
        return None
    return host.strip(b"[]").decode("ascii", "replace").lower().rstrip("."), int(port)
