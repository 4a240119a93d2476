"""Connections to providers, kept open and shared by all calls.

httpcore is used without the client that is usually put over it: nothing here is redirected, decoded or tried again,
and no cookie of one rollout's is sent with another's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol, cast
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from forkyard.gateway.headers import Headers
from forkyard.gateway.wire import Network, Wire

CONNECTIONS, IDLE_CONNECTIONS = 1000, 256
IDLE_SECONDS = 5.0
"""Servers close idle connections too: uvicorn after so many seconds."""

FAILURES = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)
"""Everything that can go wrong below HTTP."""


class _Stream(Protocol):
    def __aiter__(self) -> AsyncGenerator[bytes, None]: ...

    async def aclose(self) -> None: ...


class Reply:
    """A provider's reply whose head is there. `pieces` is its body as it travels, and raises `FAILURES`."""

    __slots__ = ("_stream", "_wire", "headers", "pieces", "status")

    def __init__(self, response: httpcore2.Response) -> None:
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers]
        self._stream = cast(_Stream, response.stream)
        self.pieces = aiter(self._stream)
        self._wire: Wire = response.extensions["network_stream"]

    def end_by(self, deadline: float) -> None:
        """Raise httpcore's ReadTimeout for what has not come by a moment of the event loop's time."""
        self._wire.deadline = deadline

    async def aclose(self) -> None:
        """Let its connection go: to the next call when everything has come, else for good."""
        self._wire.deadline = None
        await self.pieces.aclose()
        await self._stream.aclose()


class _Target(NamedTuple):
    url: httpcore2.URL
    host: bytes
    proxy: str | None


class Pool:
    """Asks providers over connections that are kept open, through the proxies that the environment names."""

    def __init__(self) -> None:
        self._pools: dict[tuple[bytes, str | None], httpcore2.AsyncConnectionPool] = {}

    async def send(
        self, method: str, url: str, headers: Headers, content: bytes | None, timeouts: Mapping[str, float]
    ) -> Reply:
        """A reply as soon as its head is there, to be closed. Raises `FAILURES`."""
        target = _target(url)
        told = [(b"host", target.host), *headers]
        if content is not None:
            told.append((b"content-length", b"%d" % len(content)))
        request = httpcore2.Request(
            method, target.url, headers=told, content=content, extensions={"timeout": dict(timeouts)}
        )
        return Reply(await self._pool(target.url.scheme, target.proxy).handle_async_request(request))

    async def close(self) -> None:
        """Let go of connections."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    def _pool(self, scheme: bytes, proxy: str | None) -> httpcore2.AsyncConnectionPool:
        if (scheme, proxy) not in self._pools:
            self._pools[scheme, proxy] = httpcore2.AsyncConnectionPool(
                ssl_context=httpx2.create_ssl_context() if scheme == b"https" else None,
                proxy=None if proxy is None else _proxy(proxy),
                max_connections=CONNECTIONS,
                max_keepalive_connections=IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_SECONDS,
                network_backend=Network(),
            )
        return self._pools[scheme, proxy]


@lru_cache(256)
def _target(address: str) -> _Target:
    """Where a request goes. Parsing takes longer than anything else that is done to it here."""
    url = httpx2.URL(address)
    target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    return _Target(target, url.netloc, _proxy_for(url))


def _proxy_for(url: httpx2.URL) -> str | None:
    given = getproxies()
    proxy = given.get(url.scheme) or given.get("all")
    if not proxy or proxy_bypass(url.host) or proxy_bypass(url.netloc.decode("ascii")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _proxy(address: str) -> httpcore2.Proxy:
    proxy = httpx2.Proxy(address)
    url = proxy.url
    place = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    return httpcore2.Proxy(place, auth=proxy.raw_auth, headers=proxy.headers.raw)
