"""The server without a socket: its application in this process, asked as it would be over one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forkyard.errors import ConfigError
from forkyard.wire import ClosedError, RefusedError, Reply, Socket, data_of
from forkyard.wire.transport import REPLY_LIMIT

if TYPE_CHECKING:
    import httpx2

    from forkyard.server.app import App

ORIGIN = "http://forkyard.localhost"
KEY = "embedded"
"""The name of the key that a process has while it is its own server."""
_WAITING = 16  # messages one side of a web socket may be ahead of the other


class EmbeddedTransport:
    """A server over FORKYARD_HOME in this process (see `Transport`). Made by `opened`; `close` ends it."""

    def __init__(self, app: App, http: httpx2.AsyncClient, key: str, stack: AsyncExitStack) -> None:
        self._app = app
        self._http = http
        self._key = key
        self._stack = stack
        self._answering: set[asyncio.Task[None]] = set()  # one for each web socket

    @classmethod
    async def opened(cls, home: Path) -> Self:
        """One over that home. ConfigError when a server, or another program with its own, is there already."""
        import httpx2

        from forkyard.sandbox.local import LocalProvider
        from forkyard.server.main import application
        from forkyard.server.serving import opened

        log = logging.getLogger("forkyard.server")
        if not log.handlers:  # else what it tells would go to standard error; whoever wants it adds another
            log.addHandler(logging.NullHandler())
        async with AsyncExitStack() as stack:
            provider = await stack.enter_async_context(LocalProvider(home))
            try:
                server = await stack.enter_async_context(opened(home, provider))
            except ConfigError as err:
                raise ConfigError(
                    f"{home} is in use by a server, or by another program that is its own: set FORKYARD_URL and "
                    f"FORKYARD_KEY to use that server, or set another FORKYARD_HOME ({err})"
                ) from err
            if (left := server.keys.get(KEY)) is not None:
                server.keys.revoke(left.id)
            made, key = server.keys.create(KEY, "of a program that is its own server, while it runs")
            stack.callback(server.keys.revoke, made.id)
            app = application(server)
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app, raise_app_exceptions=False), timeout=None)
            await stack.enter_async_context(http)
            return cls(app, http, key, stack.pop_all())

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
        from forkyard.wire.url import read_reply

        given = {"authorization": self._key, **(headers or {})}
        async with self._http.stream(
            method, ORIGIN + path, params=query, json=json, content=content, headers=given
        ) as response:
            return await read_reply(response, limit)

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[Socket]:
        """A web socket (see `Transport`)."""
        socket = _EmbeddedSocket()
        scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", ORIGIN.partition("//")[2].encode()),
                (b"authorization", self._key.encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": None,
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
            "state": {},
        }
        task = asyncio.create_task(self._app(scope, socket.to_app, socket.from_app))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        task.add_done_callback(lambda _: socket.ended())
        try:
            await socket.opened()
            yield socket
        finally:
            socket.leave()
            with suppress(Exception):
                await asyncio.wait([task])

    async def close(self) -> None:
        """End web sockets and the server: what runs in its sandboxes is ended, and their disks are sealed."""
        answering = list(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await self._stack.aclose()


class _EmbeddedSocket:
    """Both ends of a web socket: the application's are `to_app` and `from_app`."""

    def __init__(self) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[str | bytes | ClosedError] = asyncio.Queue()
        self._room = asyncio.Semaphore(_WAITING)  # for what goes to the application
        self._taken = asyncio.Semaphore(_WAITING)  # for what comes from it
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._denied: tuple[int, bytes] | None = None
        self._closed: ClosedError | None = None
        self._left = False
        self._to_app.put_nowait({"type": "websocket.connect"})

    # The application's end.

    async def to_app(self) -> dict[str, Any]:
        message = await self._to_app.get()
        if message["type"] == "websocket.receive":
            self._room.release()
        return message

    async def from_app(self, message: Any) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            self._accepted.set_result(None)
        elif kind == "websocket.send":
            if self._left:
                raise OSError("the client has left")
            await self._taken.acquire()
            text = message.get("text")
            self._from_app.put_nowait(text if text is not None else message["bytes"])
        elif kind == "websocket.close":
            self._close(ClosedError(message.get("code", 1000), message.get("reason") or ""))
        elif kind == "websocket.http.response.start":
            self._denied = message["status"], b""
        elif kind == "websocket.http.response.body" and self._denied is not None:
            self._denied = self._denied[0], self._denied[1] + message.get("body", b"")
            if not message.get("more_body"):
                self.ended()

    def _close(self, why: ClosedError) -> None:
        if self._closed is None:
            self._closed = why
            self._from_app.put_nowait(why)
            self._room.release()
        if not self._accepted.done():
            self._accepted.set_result(None)

    def ended(self) -> None:
        """The application says no more."""
        self._close(ClosedError(1006, "the connection was lost"))

    # The client's.

    async def opened(self) -> None:
        """Wait until it is accepted. RefusedError."""
        await self._accepted
        if self._denied is not None:
            data_of(Reply(self._denied[0], {}, self._denied[1]))
        if self._closed is not None and self._from_app.qsize() == 1:
            raise RefusedError(0, f"no web socket: {self._closed}")

    async def send(self, message: str | bytes) -> None:
        await self._room.acquire()
        if self._closed is not None:
            self._room.release()
            raise self._closed
        self._to_app.put_nowait({"type": "websocket.receive", "text" if isinstance(message, str) else "bytes": message})

    async def receive(self) -> str | bytes:
        message = await self._from_app.get()
        if isinstance(message, ClosedError):
            self._from_app.put_nowait(message)  # for whoever asks again
            raise message
        self._taken.release()
        return message

    def leave(self) -> None:
        self._left = True
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
        for _ in range(_WAITING):
            self._taken.release()
