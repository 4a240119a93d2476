"""One engine socket: calls of a client, each a task of its own, and the end of all it made when the socket ends."""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from forkyard.errors import ForkyardError, SandboxError
from forkyard.sandbox import Provider
from forkyard.sandbox.remote.frames import PIECE, Body, Said, head_of, messages
from forkyard.sandbox.remote.values import SMALL, BrokenWire, error_out, mapping
from forkyard.sandbox.values import ARCHIVE_LIMIT
from forkyard.server.engine.deeds import DEEDS, Asked
from forkyard.server.engine.holdings import Holdings
from forkyard.server.engine.streams import Streams

CALLS = 4096
"""Calls of one session that may be under way."""
BEHIND = 64 << 20
"""Bytes of a command's output that a client may be behind with; beyond it the command is ended."""
_NORMAL, _BROKEN = 1000, 1002

_log = logging.getLogger("forkyard.server")


class Session:
    """Serves one socket."""

    def __init__(self, socket: WebSocket, provider: Provider, streams: Streams) -> None:
        self._socket = socket
        self._provider = provider
        self._streams = streams
        self._holdings = Holdings()
        self._bodies: dict[int, Body] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until the client leaves, or is gone."""
        try:
            while (said := await self._next()) is not None:
                number, asked = said
                self._calls[number] = asyncio.create_task(self._answer(number, asked))
        except WebSocketDisconnect:
            pass
        except ValueError as err:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.close(_BROKEN, str(err)[:100])
        finally:
            await self._leave()

    async def _next(self) -> tuple[int, Said] | None:
        """The next whole call; None when the client leaves."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1006))
            head, piece = head_of(message.get("bytes") or message.get("text") or b"")
            if "cancel" in head:
                await self._cancel(head["cancel"])
                continue
            number = head.get("id")
            if not isinstance(number, int) or number in self._calls:
                raise BrokenWire("a call without a number of its own")
            if len(self._calls) + len(self._bodies) >= CALLS:
                raise BrokenWire(f"more than {CALLS} calls at once")
            body = self._bodies.setdefault(number, Body(ARCHIVE_LIMIT + SMALL))
            body.add(piece)
            if "part" in head:
                continue
            said = self._bodies.pop(number).said(head)
            if head.get("do") == "leave":
                await self._leave()
                await self._say({"id": number})
                await self._socket.close(_NORMAL)
                return None
            return number, said

    async def _cancel(self, number: Any) -> None:
        if not isinstance(number, int):
            raise BrokenWire("no number of a call")
        if (task := self._calls.get(number)) is not None:
            task.cancel()
        else:
            self._bodies.pop(number, None)
            await self._say({"id": number, "error": True}, error_out(SandboxError("the call was cancelled")))

    async def _answer(self, number: int, said: Said) -> None:
        teller = _Teller(self, number)
        try:
            head, value, data = await self._done(said, teller)
        except asyncio.CancelledError:
            head, value, data = {"error": True}, error_out(SandboxError("the call was cancelled")), b""
        except Exception as err:  # noqa: BLE001 - told to the client, if it is one of the protocol's
            if not isinstance(err, ForkyardError | OSError | ValueError):
                _log.error("the engine failed at %s", said.head.get("do"), exc_info=err)
            head, value, data = {"error": True}, error_out(err), b""
        finally:
            del self._calls[number]  # from here on nothing is left to be cancelled
        await teller.end()
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._say({"id": number, **head}, value, data)

    async def _done(self, said: Said, teller: _Teller) -> tuple[dict[str, Any], Any, bytes]:
        do = said.head.get("do")
        deed = DEEDS.get(do) if isinstance(do, str) else None
        if deed is None:
            raise BrokenWire(f"there is nothing called {str(do)[:40]!r}")
        args = mapping(said.value)
        asked = Asked(self._provider, self._holdings, args, said.data, teller.tell, self._accepted, self._streams.drop)
        try:
            value, data = await deed(asked)
        finally:
            state = self._news(args)
        return {} if state is None else {"state": state}, value, data

    def _news(self, args: Mapping[str, Any]) -> dict[str, Any] | None:
        if "box" not in args:
            return None
        try:
            return self._holdings.box(args["box"]).news()
        except (SandboxError, BrokenWire):
            return None

    def _accepted(self, listener: int | None, connection: sockets.socket) -> Any:
        """Offer a connection: its token, or for one of a listener what tells the client of it."""
        token = self._streams.offer(connection)
        return token if listener is None else self._say({"stream": token, "listener": listener})

    async def _say(self, head: Mapping[str, Any], value: Any = None, data: bytes = b"") -> None:
        for message in messages(head, value, data):
            await self._socket.send_bytes(message)

    async def say_event(self, number: int, stream: str, data: bytes) -> None:
        """A piece of a command's output."""
        for at in range(0, len(data), PIECE // 2):  # each a message of its own
            await self._say({"id": number, "event": stream}, None, data[at : at + PIECE // 2])

    async def _leave(self) -> None:
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._holdings.leave()


class _Teller:
    """Tells a client of a command's output, in order and before the command's end."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self._number = number
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._behind = 0
        self._task: asyncio.Task[None] | None = None

    def tell(self, stream: str, data: bytes) -> None:
        """One piece. SandboxError when the client is too far behind."""
        self._behind += len(data)
        if self._behind > BEHIND:
            raise SandboxError(f"the client is {BEHIND} bytes of output behind: it reads them too slowly")
        self._waiting.append((stream, data))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while self._waiting:
                stream, data = self._waiting.popleft()
                await self._session.say_event(self._number, stream, data)
                self._behind -= len(data)

    async def end(self) -> None:
        """All was told."""
        if self._task is not None:
            await asyncio.wait([self._task])
