"""A server by its URL: HTTP and web sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from forkyard.wire.place import Place
from forkyard.wire.transport import REPLY_LIMIT, ClosedError, RefusedError, Reply, Socket

if TYPE_CHECKING:
    import httpx2
    from websockets.asyncio.client import ClientConnection

MESSAGE_LIMIT = 1 << 20
"""Bytes of one message of a web socket, in either direction."""
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 330.0  # a server says something of long work every few seconds


class UrlTransport:
    """Reaches one server (see `Transport`); used from one event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._context: ssl.SSLContext | None = None
        self._http: httpx2.AsyncClient | None = None
        self._sockets: set[ClientConnection] = set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str]] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = REPLY_LIMIT,
    ) -> Reply:
        """Ask (see `Transport`)."""
        import httpx2

        given = {"authorization": self.place.authorization, **(headers or {})}
        url = self.place.origin + path
        try:
            async with self._client().stream(
                method, url, params=query, json=json, content=content, headers=given
            ) as response:
                return await read_reply(response, limit)
        except httpx2.HTTPError as err:
            raise RefusedError(0, f"{self.place.origin} cannot be asked: {err or type(err).__name__}") from err

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[Socket]:
        """A web socket (see `Transport`)."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake

        url = "ws" + self.place.origin.removeprefix("http") + path
        try:
            connection = await connect(
                url,
                additional_headers={"authorization": self.place.authorization},
                ssl=self._tls() if url.startswith("wss") else None,
                open_timeout=CONNECT_SECONDS,
                max_size=MESSAGE_LIMIT,
                compression=None,
            )
        except (OSError, InvalidHandshake) as err:
            raise _refused(self.place, err) from err
        self._sockets.add(connection)
        try:
            yield _UrlSocket(connection)
        finally:
            self._sockets.discard(connection)
            await connection.close()

    async def close(self) -> None:
        """Let go of connections, web sockets among them."""
        await asyncio.gather(*(connection.close() for connection in self._sockets), return_exceptions=True)
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        if self._http is None:
            timeout = httpx2.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
            self._http = httpx2.AsyncClient(verify=self._tls(), timeout=timeout)
        return self._http

    def _tls(self) -> ssl.SSLContext:
        """What the system trusts, or SSL_CERT_FILE."""
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context


async def read_reply(response: httpx2.Response, limit: int) -> Reply:
    """A response as a reply. RefusedError when it has more bytes than `limit`."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > limit:
            raise RefusedError(0, f"an answer of more than {limit} bytes was given up")
        pieces.append(piece)
    return Reply(response.status_code, dict(response.headers), b"".join(pieces))


def _refused(place: Place, err: Exception) -> RefusedError:
    from websockets.exceptions import InvalidStatus

    if isinstance(err, InvalidStatus):
        from forkyard.wire.transport import data_of

        try:
            data_of(Reply(err.response.status_code, {}, bytes(err.response.body or b"")))
        except RefusedError as told:
            return told
    return RefusedError(0, f"{place.origin} opens no web socket: {err or type(err).__name__}")


class _UrlSocket:
    """A connection of the websockets library, with our errors."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(message)
        except ConnectionClosed as err:
            raise _closed(err) from None

    async def receive(self) -> str | bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            return await self._connection.recv()
        except ConnectionClosed as err:
            raise _closed(err) from None


def _closed(err: Any) -> ClosedError:
    told = err.rcvd or err.sent
    return ClosedError(told.code if told else None, told.reason if told else "the connection was lost")
