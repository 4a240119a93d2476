"""The door: a proxy that the host serves on a port of a sandbox's own loopback, and the sandbox's only way out.

HTTP requests, tunnels (CONNECT) and SOCKS 5 come in on the same port. A name is resolved once per connection, by the
host, and the connection goes to the very address that was judged. A tunnel has to carry TLS made out to the name it was
asked for. Nothing is decrypted but what goes to hosts that have a rule.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress

from forkyard.sandbox.network import altering, http, socks, tls
from forkyard.sandbox.network.addresses import Address, Resolve, is_own, resolve
from forkyard.sandbox.network.authority import Authority, trusted_context
from forkyard.sandbox.network.http import BadRequestError, Request
from forkyard.sandbox.network.links import HTTP, SOCKS, Bounds, Everywhere, Link, RefusedError
from forkyard.sandbox.network.policy import Network, is_host_name, literal
from forkyard.sandbox.network.rules import Rule
from forkyard.sandbox.network.streams import Stream, relay
from forkyard.sandbox.network.visits import Visits

ADDRESSES_TRIED = 3
RESOLVED_AT_ONCE = 4
RETRY_ACCEPT = 0.2
_BOUNDS = Bounds()


class Door:
    """Serves `sock`, a listening socket inside a sandbox, until it is closed. Owns the socket."""

    def __init__(
        self,
        sock: socket.socket,
        network: Network,
        *,
        visits: Visits | None = None,
        authority: Authority | None = None,
        resolve: Resolve = resolve,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        sock.setblocking(False)
        self.port: int = sock.getsockname()[1]
        self.network = network
        self.visits = visits or Visits()
        self._sock = sock
        self._authority = authority or Authority()
        self._resolve = resolve
        self._bounds = bounds
        self._resolving = asyncio.Semaphore(RESOLVED_AT_ONCE)
        self._links: dict[asyncio.Task[None], Link | None] = {}
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

    async def drained(self) -> None:
        """Wait until there is no connection any more to what the network says is waited for."""
        while waiting := [task for task, link in self._links.items() if link is not None and self._drains(link)]:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cut every connection and give up the port."""
        tasks = [self._accepting, *self._links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    def _drains(self, link: Link) -> bool:
        return link.host is not None and self.network.drains(link.host, link.port, link.address)

    def _still_allowed(self, link: Link) -> bool:
        if link.host is None:
            return True
        if self.network.rule_for(link.host, link.port) != link.rule:
            return False
        if self.network.refuses_host(link.host, link.port):
            return False
        if link.raw and not link.checked and not self.network.trusts_tunnel(link.host, link.port):
            return False
        if link.address is None or (link.rule is not None and link.rule.forward is not None):
            return True
        return self._refuses_address(link.address, link.port) is None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError:  # this process can open nothing more now
                await asyncio.sleep(RETRY_ACCEPT)
                continue
            client.setblocking(False)
            if self.connections >= self._bounds.connections or Everywhere.full():
                client.close()
                continue
            task = asyncio.create_task(self._admit(client))
            self._links[task] = None
            Everywhere.open += 1
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        del self._links[task]
        Everywhere.open -= 1
        if not task.cancelled():
            task.exception()  # of a broken connection; whoever was connected has noticed

    async def _admit(self, sock: socket.socket) -> None:
        try:
            link = Link(Stream(*await asyncio.open_connection(sock=sock, limit=http.HEAD_LIMIT)))
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

    async def _serve(self, link: Link) -> None:
        try:
            request = await self._request(link)
            if request is None:
                return
            link.rule = self.network.rule_for(request.host, request.port)
            if link.rule is not None:
                await self._by_rule(link, request, link.rule)
                return
            link.server = server = await self._dial(link, request.host, request.port)
            if request.is_tunnel:
                await self._tunnel(link, server)
            else:
                await altering.converse(link.client, server, request, self._bounds.idle)
        except BadRequestError as err:
            await link.client.send(link.manner.refused(err.status, err.reason))
        except RefusedError as err:
            await link.client.send(link.manner.refused(err.status, err.reason))
        await link.client.part()

    async def _request(self, link: Link) -> Request | None:
        async with asyncio.timeout(self._bounds.head):
            first = await link.client.reader.read(1)
            if first[:1] != bytes((socks.VERSION,)):
                return await http.read_request(link.client.reader, first) if first else None
            link.manner = SOCKS
            asked = await socks.read_request(link.client)
            return asked and Request(b"CONNECT", *asked, b"", (), 0)

    async def _dial(self, link: Link, host: str, port: int) -> Stream:
        """A connection to a host that may be reached. From here on a change of the network applies to the link."""
        link.host, link.port = host, port
        if reason := self.network.refuses_host(host, port):
            raise self._refusal(link, reason)
        addresses, reason = [], None
        for address in await self._addresses(host):
            if why := self._refuses_address(address, port):
                reason = why
            else:
                addresses.append(address)
        if not addresses:
            raise self._refusal(link, reason or "it has no address")
        return await self._connected(link, host, port, addresses)

    async def _connected(self, link: Link, host: str, port: int, addresses: list[Address]) -> Stream:
        failures = []
        for address in addresses[:ADDRESSES_TRIED]:
            link.address = address
            try:
                async with asyncio.timeout(self._bounds.connect):
                    connection = await asyncio.open_connection(str(address), port, limit=http.HEAD_LIMIT)
            except (OSError, TimeoutError) as err:
                failures.append(getattr(err, "strerror", None) or "no answer")
                continue
            self.visits.record(link.host or "", link.port, None)
            return Stream(*connection)
        raise RefusedError(502, f"{host}:{port} cannot be reached: {failures[-1]}")

    def _refuses_address(self, address: Address, port: int) -> str | None:
        if reason := self.network.refuses_address(address, port):
            return reason
        if not self.network.lists(address, port) and is_own(address):
            return f"its address {address} is this machine's own"
        return None

    async def _addresses(self, host: str) -> list[Address]:
        if (address := literal(host)) is not None:
            return [address]
        try:
            async with self._resolving, asyncio.timeout(self._bounds.connect):
                found = await self._resolve(host)
        except (OSError, UnicodeError, TimeoutError):
            raise RefusedError(502, f"the name {host} cannot be resolved") from None
        return [_plain(text) for text in found]

    def _refusal(self, link: Link, reason: str) -> RefusedError:
        self.visits.record(link.host or "", link.port, reason)
        return RefusedError(403, f"{link.host}:{link.port} may not be reached from this sandbox: {reason}")

    async def _tunnel(self, link: Link, server: Stream) -> None:
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

    async def _hello(self, link: Link, host: str) -> bytes | None:
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

    async def _by_rule(self, link: Link, request: Request, rule: Rule) -> None:
        """One request to a host that has a rule, in plain or in a tunnel whose TLS ends here."""
        if request.is_tunnel:
            await self._dial_by_rule(link, request, rule, tls=True)
            inner = await self._unwrapped(link, request)
            if inner is None:
                return
            request = inner
        onward = altering.altered(request, rule)
        server = link.server or await self._dial_by_rule(link, request, rule, tls=False)
        await altering.converse(link.client, server, onward, self._bounds.idle)

    async def _dial_by_rule(self, link: Link, request: Request, rule: Rule, *, tls: bool) -> Stream:
        forward = rule.forwarding
        if forward is None:
            link.server = server = await self._dial(link, request.host, request.port)
            name = request.host
        else:
            link.host, link.port = request.host, request.port
            if reason := self.network.refuses_host(request.host, request.port):
                raise self._refusal(link, reason)
            link.server = server = await self._connected(
                link, forward.host, forward.port, await self._addresses(forward.host)
            )
            tls, name = forward.tls, forward.host
        if tls:
            try:
                server = await altering.over_tls(server, trusted_context(), name, self._bounds.connect)
            except OSError as err:
                told = getattr(err, "verify_message", None) or getattr(err, "reason", None) or "it was closed"
                raise RefusedError(502, f"no TLS with {name} can be had: {told}") from None
            link.server = server
        return server

    async def _unwrapped(self, link: Link, request: Request) -> Request | None:
        """The request in a tunnel to a host that we answer for; None when there is none."""
        if not await altering.is_silent(link.client):
            raise BadRequestError("a tunnel's bytes come once it was granted")
        await link.client.send(link.manner.granted)
        context = self._authority.context(request.host)
        try:
            inner = await altering.over_tls(link.client, context, None, self._bounds.head)
        except OSError:
            told = "its tunnel is closed: what is in it does not trust the sandbox's authority, or is not TLS"
            self.visits.record(request.host, request.port, told)
            return None
        link.client, link.manner = inner, HTTP
        async with asyncio.timeout(self._bounds.head):
            return await http.read_request(inner.reader, b"", (request.host, request.port))


def _plain(text: str) -> Address:
    """An address as a resolver writes it; one that is written as IPv6 around an IPv4 address counts as that."""
    return literal(text) or ipaddress.ip_address(text.partition("%")[0])
