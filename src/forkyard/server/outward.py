"""Hosts the proxy does not stand for: reached for whoever shows the password that `forkyard env` prints.

So a shell that is pointed here reaches everything it reached before, and the server is no open proxy.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from forkyard.sandbox.network.streams import Stream
from forkyard.server.files import own_secret

USER = "forkyard"
_HEADER = b"proxy-authorization"
_HEAD_LIMIT = 8192
_CONNECT_SECONDS = 30.0
_HERE = {"localhost", "127.0.0.1", "::1"}  # no other proxy's to reach
_NAME = re.compile(r"[a-z0-9._:%-]{1,253}")  # what goes on to another proxy is no more than that


def proxy_password(home: Path) -> str:
    """What clients show the proxy of this home; it follows from the server's secret and is the same for ever."""
    return hmac.new(own_secret(home), b"proxy", hashlib.sha256).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Outward:
    """The way to other hosts. `own` are addresses of ours, which are no proxy to go through."""

    password: str = field(repr=False)
    own: Set[tuple[str, int]]

    def permits(self, head: bytes) -> bool:
        """Whether the head of a CONNECT shows the password."""
        right = b"basic " + _basic(USER, self.password)
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == _HEADER:
                scheme, _, shown = value.strip().partition(b" ")
                return hmac.compare_digest(scheme.lower() + b" " + shown.strip(), right)
        return False

    async def reach(self, host: str, port: int) -> Stream:
        """A connection, through the proxy that the environment of this process names, if it does. OSError."""
        if not _NAME.fullmatch(host) or not 0 < port < 1 << 16:
            raise OSError("that is no host and port")
        if host.endswith(".localhost"):  # which not every resolver knows to be this machine
            host = "localhost"
        given = getproxies()
        url = given.get("https") or given.get("all")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if url and host not in _HERE and not proxy_bypass(host):
                    return await self._through(url if "://" in url else f"http://{url}", host, port)
                return Stream(*await asyncio.open_connection(host, port))
        except TimeoutError:
            raise OSError(f"nothing answered within {_CONNECT_SECONDS:g} seconds") from None
        except ValueError as err:  # a label that is too long, an HTTPS_PROXY that is no address
            raise OSError(f"no connection can be made: {err}") from None

    async def _through(self, url: str, host: str, port: int) -> Stream:
        proxy = urlsplit(url)
        at = proxy.hostname or "", proxy.port or (443 if proxy.scheme == "https" else 80)
        if at in self.own:  # the server was started in a shell that was pointed at it
            return Stream(*await asyncio.open_connection(host, port))
        if proxy.scheme not in ("http", "https"):
            raise OSError(f"the server's own proxy is {proxy.scheme}://, which it cannot go through")
        reader, writer = await asyncio.open_connection(*at, ssl=proxy.scheme == "https" or None, limit=_HEAD_LIMIT)
        try:
            target = b"[%b]:%d" % (host.encode(), port) if ":" in host else b"%b:%d" % (host.encode(), port)
            shown = b""
            if proxy.username is not None:
                pair = _basic(unquote(proxy.username), unquote(proxy.password or ""))
                shown = b"Proxy-Authorization: Basic %b\r\n" % pair
            writer.write(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, shown))
            status = (await _head(reader)).split(b" ", 2)[1:2]
            if not status or not status[0].startswith(b"2"):
                told = b"".join(status).decode("ascii", "replace") or "nothing"
                raise OSError(f"the proxy {at[0]}:{at[1]} that the server goes through answered {told:.10}")
        except BaseException:
            writer.transport.abort()
            raise
        return Stream(reader, writer)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""


def _basic(user: str, password: str) -> bytes:
    return base64.b64encode(f"{user}:{password}".encode())
