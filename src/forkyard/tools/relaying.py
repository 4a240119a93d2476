"""A server of tools outside that wants a credential: programs in the sandbox reach it through the host, which adds it.

What it says goes back as it comes, unless it holds the credential.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urljoin, urlsplit

from forkyard.gateway.decoding import Events
from forkyard.gateway.headers import Headers, back, onward, value_of, without_keys
from forkyard.gateway.listening import Listener, serve_inside
from forkyard.gateway.observer import Guard
from forkyard.gateway.pool import FAILURES, Pool, Reply
from forkyard.gateway.serving import BrokenOffError, Receive, Scope, Send, until_gone
from forkyard.sandbox import Sandbox
from forkyard.secrets import SHORTEST_SECRET
from forkyard.task import ToolServer
from forkyard.tools.requests import AT_ONCE, TOO_MUCH, read_request, refuse

PORT = 9190
METHODS = ("GET", "POST", "DELETE")
ADDRESSES = 16
"""How many addresses for requests a server may announce in one rollout."""
_PATIENCE = {"connect": 30.0, "read": 3600.0, "write": 60.0, "pool": 60.0}


class Relay:
    """One server for one rollout. It is asked at its own address alone, and at those that it announces itself."""

    def __init__(self, name: str, server: ToolServer) -> None:
        self._name = name
        self._server = server
        words = [word for text in server.secrets.values() for word in (text, *text.split())]
        self._keys = [word for word in words if len(word) >= SHORTEST_SECRET]
        self._at = urlsplit(server.url)
        self._paths = {self._at.path or "/"}
        self._pool = Pool()
        self._listener: Listener | None = None
        self._busy = 0

    async def listen(self, sandbox: Sandbox, number: int) -> ToolServer:
        """Serve inside a sandbox, as the relay of that number; the server as programs there have it."""
        self._listener = await serve_inside(sandbox, self, PORT + number, f"the tool server {self._name}")
        query = f"?{self._at.query}" if self._at.query else ""
        url = f"http://127.0.0.1:{self._listener.port}{self._at.path or '/'}{query}"
        return ToolServer(url, self._server.transport)

    async def close(self) -> None:
        """Cut every connection, to the server too."""
        if self._listener is not None:
            self._listener.close()
        await self._pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request as ASGI gives it."""
        if scope["type"] != "http":
            return
        if scope["method"] not in METHODS or scope["path"] not in self._paths:
            await refuse(send, 404, f"of {self._name} only its own address is served")
        elif self._busy >= AT_ONCE:
            await refuse(send, 503, "too many requests at once")
        else:
            self._busy += 1
            try:
                await self._answer(scope, receive, send)
            finally:
                self._busy -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_request(scope, receive)
        if body is None:
            await refuse(send, 413, TOO_MUCH)
            return
        await until_gone(asyncio.create_task(self._relayed(scope, body, send)), receive)

    async def _relayed(self, scope: Scope, body: bytes, send: Send) -> None:
        own = {**self._server.headers, **self._server.secrets}
        named = {name.lower().encode() for name in own}
        given: Headers = [(name, value) for name, value in scope["headers"] if name not in named]
        query = scope["query_string"].decode("latin-1")
        path = scope["path"] + (f"?{query}" if query else "")
        content = body if scope["method"] == "POST" else None
        headers = onward(given, own, plain=True, rewritten=False)
        url = urljoin(self._server.url, path)
        try:
            reply = await self._pool.send(scope["method"], url, headers, content, _PATIENCE)
        except FAILURES as err:
            await refuse(send, 502, f"the tool server {self._name} cannot be asked: {type(err).__name__}")
            return
        try:
            if value_of(reply.headers, b"content-encoding") not in ("", "identity"):
                await refuse(send, 502, f"the tool server {self._name} answered compressed, though asked not to")
            else:
                await self._pass_on(reply, send)
        finally:
            await reply.aclose()

    async def _pass_on(self, reply: Reply, send: Send) -> None:
        headers = without_keys(back(reply.headers, rewritten=False), self._keys)
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        guard, events = Guard(self._keys), Events()
        streamed = value_of(reply.headers, b"content-type").startswith("text/event-stream")
        try:
            async for piece in reply.pieces:
                guard.check(piece)
                if streamed and self._server.transport == "sse":
                    self._hear(events, piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (*FAILURES, ValueError) as err:
            raise BrokenOffError(str(err)) from None
        await send({"type": "http.response.body", "body": b""})

    def _hear(self, events: Events, piece: bytes) -> None:
        """Learn where it wants requests: by SSE it tells that first."""
        for event, data in events.feed(piece):
            if event.startswith(b"event: endpoint") and len(self._paths) < ADDRESSES:
                at = urlsplit(urljoin(self._server.url, data.decode("utf-8", "replace")))
                if (at.scheme, at.netloc) == (self._at.scheme, self._at.netloc):
                    self._paths.add(at.path)
