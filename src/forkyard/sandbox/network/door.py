"""The door: a proxy that the host serves on a port of a sandbox's own loopback, and the sandbox's only way out.

HTTP requests, tunnels (CONNECT) and SOCKS 5 come in on the same port. A name is resolved once per connection, by the
host, and the connection goes to the very address that was judged. A tunnel has to carry TLS made out to the name it was
asked for; nothing is decrypted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from forkyard.sandbox.network import http, socks, tls
from forkyard.sandbox.network.addresses import Address, Resolve, is_own, resolve
from forkyard.sandbox.network.http import BadRequestError, Request
from forkyard.sandbox.network.policy import Network, is_host_name, literal
from forkyard.sandbox.network.streams import Stream, pump, relay, tasks_of, while_moving
from forkyard.sandbox.network.visits import Visits

ADDRESSES_TRIED = 3
RESOLVED_AT_ONCE = 4
RETRY_ACCEPT = 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the host one sandbox's door may take; times in seconds."""

    connections: int = 128
    head: float = 15.0  # for a request's head, and for the first message of a tunnel
    connect: float = 15.0  # for one address, and for a name
    idle: float = 300.0  # without a byte either way
    total: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a client is told what became of its tunnel."""

    granted: bytes
    refused: Callable[[int, str], bytes]


_HTTP = _Manner(b"HTTP/1.1 200 Connection established\r\n\r\n", http.answer)
_SOCKS = _Manner(
    socks.reply(socks.GRANTED),
    lambda status, reason: socks.reply(socks.UNREACHABLE if status == 502 else socks.REFUSED),
)


class _RefusedError(Exception):
    """This client gets no connection; `status` is HTTP's word for it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(eq=False, slots=True)
class _Link:
    """One connection from inside, and where it leads as far as that is known."""

    client: Stream
    host: str | None = None
    port: int = 0
    address: Address | None = None
    checked: bool = False  # it is TLS, made out to `host`
    raw: bool = False  # it carries whatever it likes
    server: Stream | None = None
    manner: _Manner = field(default=_HTTP)


class _Everywhere:
    """The connections of all doors: together they may take a part only of what this process can open."""

    open = 0

    @classmethod
    def full(cls) -> bool:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls.open >= (soft if soft > 0 else 1 << 20) // 8


class Door:
    """Serves `sock`, a listening socket inside a sandbox, until it is closed. Owns the socket."""

    def __init__(
        self,
        sock: socket.socket,
        network: Network,
        *,
        visits: Visits | None = None,
        resolve: Resolve = resolve,
        bounds: Bounds = Bounds(),
    ) -> None:
        sock.setblocking(False)
        self.port: int = sock.getsockname()[1]
        self.network = network
        self.visits = visits or Visits()
        self._sock = sock
        self._resolve = resolve
        self._bounds = bounds
        self._resolving = asyncio.Semaphore(RESOLVED_AT_ONCE)
        self._links: dict[asyncio.Task[None], _Link | None] = {}
        self._accepting = asyncio.create_task(self._accept())

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._links)

    async def change(self, network: Network) -> None:
        """From now on judge by another network; connections it does not allow are cut before this returns."""
        self.network = network
        cut = [task for task, link in self._links.items() if link is not None and not self._still_allowed(link)]
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)

    async def close(self) -> None:
        """Cut every connection and give up the port."""
        tasks = [self._accepting, *self._links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    def _still_allowed(self, link: _Link) -> bool:
        if link.host is None:
            return True
        if self.network.refuses_host(link.host, link.port):
            return False
        if link.raw and not link.checked and not self.network.trusts_tunnel(link.host, link.port):
            return False
        return link.address is None or self._refuses_address(link.address, link.port) is None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError:  # this process can open nothing more now
                await asyncio.sleep(RETRY_ACCEPT)
                continue
            client.setblocking(False)
            if self.connections >= self._bounds.connections or _Everywhere.full():
                client.close()
                continue
            task = asyncio.create_task(self._admit(client))
            self._links[task] = None
            _Everywhere.open += 1
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        del self._links[task]
        _Everywhere.open -= 1
        if not task.cancelled():
            task.exception()  # of a broken connection; whoever was connected has noticed

    async def _admit(self, sock: socket.socket) -> None:
        try:
            link = _Link(Stream(*await asyncio.open_connection(sock=sock, limit=http.HEAD_LIMIT)))
        except BaseException:
            sock.close()
            raise
        task = asyncio.current_task()
        if task is not None:
            self._links[task] = link
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(self._bounds.total):
                    await self._serve(link)
        finally:
            link.client.abort()
            if link.server is not None:
                link.server.abort()

    async def _serve(self, link: _Link) -> None:
        try:
            request = await self._request(link)
            if request is None:
                return
            link.server = server = await self._dial(link, request.host, request.port)
            if request.is_tunnel:
                await self._tunnel(link, server)
            else:
                await self._exchange(link, server, request)
        except BadRequestError as err:
            await link.client.send(link.manner.refused(err.status, err.reason))
        except _RefusedError as err:
            await link.client.send(link.manner.refused(err.status, err.reason))
        await link.client.part()

    async def _request(self, link: _Link) -> Request | None:
        async with asyncio.timeout(self._bounds.head):
            first = await link.client.reader.read(1)
            if first[:1] != bytes((socks.VERSION,)):
                return await http.read_request(link.client.reader, first) if first else None
            link.manner = _SOCKS
            asked = await socks.read_request(link.client)
            return asked and Request(b"CONNECT", *asked, b"", (), 0)

    async def _dial(self, link: _Link, host: str, port: int) -> Stream:
        """A connection to a host that may be reached. From here on a change of the network applies to the link."""
        link.host, link.port = host, port
        if reason := self.network.refuses_host(host, port):
            raise self._refusal(link, reason)
        addresses, reason = [], None
        for address in await self._addresses(link, host):
            if why := self._refuses_address(address, port):
                reason = why
            else:
                addresses.append(address)
        if not addresses:
            raise self._refusal(link, reason or "it has no address")
        return await self._connected(link, addresses[:ADDRESSES_TRIED])

    async def _connected(self, link: _Link, addresses: list[Address]) -> Stream:
        failures = []
        for address in addresses:
            link.address = address
            try:
                async with asyncio.timeout(self._bounds.connect):
                    connection = await asyncio.open_connection(str(address), link.port, limit=http.HEAD_LIMIT)
            except (OSError, TimeoutError) as err:
                failures.append(getattr(err, "strerror", None) or "no answer")
                continue
            self.visits.record(link.host or "", link.port, None)
            return Stream(*connection)
        raise _RefusedError(502, f"{link.host}:{link.port} cannot be reached: {failures[-1]}")

    def _refuses_address(self, address: Address, port: int) -> str | None:
        if reason := self.network.refuses_address(address, port):
            return reason
        if not self.network.lists(address, port) and is_own(address):
            return f"its address {address} is this machine's own"
        return None

    async def _addresses(self, link: _Link, host: str) -> list[Address]:
        if (address := literal(host)) is not None:
            return [address]
        try:
            async with self._resolving, asyncio.timeout(self._bounds.connect):
                found = await self._resolve(host)
        except (OSError, UnicodeError, TimeoutError):
            raise _RefusedError(502, f"the name {host} cannot be resolved") from None
        return [_plain(text) for text in found]

    def _refusal(self, link: _Link, reason: str) -> _RefusedError:
        self.visits.record(link.host or "", link.port, reason)
        return _RefusedError(403, f"{link.host}:{link.port} may not be reached from this sandbox: {reason}")

    async def _tunnel(self, link: _Link, server: Stream) -> None:
        host = link.host or ""
        link.raw = True
        trusted = self.network.trusts_tunnel(host, link.port)
        await link.client.send(link.manner.granted)
        if not trusted:
            async with asyncio.timeout(self._bounds.head):
                hello = await self._hello(link, host)
            if hello is None:
                return
            link.checked = True
            await server.send(hello)
        await relay(link.client, server, self._bounds.idle)

    async def _hello(self, link: _Link, host: str) -> bytes | None:
        """The first message of a tunnel, if it is made out to `host`; else the client is told, and so is the record."""
        try:
            hello, name = await tls.read_client_hello(link.client.reader)
        except tls.NotTlsError as err:
            self.visits.record(host, link.port, f"its tunnel is closed: {err}")
            return None
        if name == host or (name is None and literal(host) is not None):
            return hello
        named = (name if is_host_name(name) else "something that is no name") if name else "nobody"
        self.visits.record(host, link.port, f"its tunnel is closed: the TLS in it is for {named}")
        await link.client.send(tls.UNRECOGNIZED_NAME)
        return None

    async def _exchange(self, link: _Link, server: Stream, request: Request) -> None:
        """One request and its answer; what else comes on this connection is not read."""
        async with while_moving(self._bounds.idle) as moved:
            await server.send(request.head())
            body = http.send_body(request, link.client, server, moved)
            async with tasks_of(pump(server, link.client, moved), body) as (answering, sending):
                done, _ = await asyncio.wait((answering, sending), return_when=asyncio.FIRST_COMPLETED)
                if sending in done:
                    sending.result()
                await answering


def _plain(text: str) -> Address:
    """An address as a resolver writes it; one that is written as IPv6 around an IPv4 address counts as that."""
    return literal(text) or ipaddress.ip_address(text.partition("%")[0])
