"""A connection that becomes a web socket: the handshake and the messages, as ASGI has them; frames are `websockets`'.

What a client sends is read no further while much of it has not been taken, and what it does not take is waited for.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from collections import deque
from email.utils import formatdate
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import accept_key

from forkyard.gateway.serving import Asgi, Scope

MESSAGE_LIMIT = 1 << 20
"""Bytes of one message: what the clients themselves take and send at most."""
HELD = 64 << 10
"""Bytes of messages nobody has taken yet, beyond which no more are read."""
PING_SECONDS = 20.0
"""How long after the last answer the next ping is sent, and how long an answer is waited for."""
CLOSE_SECONDS = 10.0
_EACH = 100  # what a message costs beside its bytes
_GOING, _RESTARTING, _NO_TEXT, _CUT = 1005, 1012, 1007, 1006

_log = logging.getLogger("forkyard.server")
_quiet = logging.getLogger("forkyard.server.frames")
_quiet.setLevel(logging.CRITICAL)  # what a hostile client provokes is not for the log

Message = dict[str, Any]


class _Phase(Enum):
    ASKED = auto()
    DENIED = auto()  # an answer other than 101 has begun
    OPEN = auto()
    CLOSING = auto()  # we said so first, and wait for the other side
    CLOSED = auto()


class WebSocketConnection(asyncio.Protocol):
    """One web socket of a client, which may be hostile. `request` is the scope of the request that asked for it."""

    def __init__(self, app: Asgi, state: ServerState, request: Scope) -> None:
        self.transport: Any = None
        self._app = app
        self._state = state
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._phase = _Phase.ASKED
        self._frames = Protocol(Side.SERVER, max_size=MESSAGE_LIMIT, logger=_quiet)
        self._pieces: list[Any] = []  # of a message that is under way
        self._is_text = False
        self._events: deque[tuple[Message, int]] = deque()  # and what they hold
        self._held = 0
        self._paused = False
        self._taker: asyncio.Future[None] | None = None  # who waits for an event
        self._room = asyncio.Event()
        self._room.set()
        self._timer: asyncio.TimerHandle | None = None
        self._ping = b""  # the one that was not answered yet
        self._denial: tuple[int, list[tuple[bytes, bytes]], bytes] = (500, [], b"")

    # What the connection tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client asks for a web socket."""
        self.transport = transport
        self._state.connections.add(self)  # type: ignore[arg-type]
        if _key(self._request) is None:
            self._deny(400, [], b"this is no handshake of a web socket\n")
            return
        self._tell({"type": "websocket.connect"})
        task = self._loop.create_task(self._run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._state.connections.discard(self)
        self._unset_timer()
        self._leave(_CUT, "")
        self._room.set()

    def pause_writing(self) -> None:
        """The client does not take what it was sent."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def shutdown(self) -> None:
        """The server ends: tell the client, and wait for nothing."""
        if self._phase is _Phase.ASKED:
            self._deny(503, [], b"the server is ending\n")
        elif self._phase is _Phase.OPEN:
            self._frames.send_close(_RESTARTING)
            self._write()
            self._leave(_RESTARTING, "")
        self._end()

    def data_received(self, data: bytes) -> None:
        """Frames have come, or pieces of them."""
        self._frames.receive_data(data)
        for frame in self._frames.events_received():
            self._heard(frame)  # type: ignore[arg-type]
        self._write()
        if self._frames.parser_exc is not None:
            self._fail()

    # What the client says.

    def _heard(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            close = self._frames.close_rcvd
            self._leave(close.code if close else _GOING, close.reason if close else "")
            self._write()
            self._end()
        elif frame.opcode is Opcode.PONG:
            if self._ping and frame.data == self._ping:
                self._ping = b""
                self._ping_later()
        elif frame.opcode is not Opcode.PING and self._phase is _Phase.OPEN:
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._pieces.append(frame.data)
            if frame.fin:
                self._whole()

    def _whole(self) -> None:
        """A message is complete."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        try:
            said = {"text": data.decode()} if self._is_text else {"bytes": data}
        except UnicodeDecodeError:
            self._frames.fail(_NO_TEXT, "this text is not UTF-8")
            self._write()
            self._fail()
            return
        self._held += len(data) + _EACH
        self._tell({"type": "websocket.receive", **said}, len(data) + _EACH)
        if self._held > HELD and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _fail(self) -> None:
        """It said what cannot be; it was told so."""
        close = self._frames.close_sent
        self._leave(close.code if close else _CUT, close.reason if close else "")
        self._end()

    def _leave(self, code: int, reason: str) -> None:
        """Nothing is said any more, from either side."""
        if self._phase not in (_Phase.CLOSING, _Phase.CLOSED):
            self._tell({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._phase = _Phase.CLOSED

    def _tell(self, event: Message, size: int = 0) -> None:
        self._events.append((event, size))
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    # Whether it is still there.

    def _ping_later(self) -> None:
        self._set_timer(PING_SECONDS, self._send_ping)

    def _send_ping(self) -> None:
        self._ping = secrets.token_bytes(4)
        self._frames.send_ping(self._ping)
        self._write()
        self._set_timer(PING_SECONDS, self.transport.abort)

    def _set_timer(self, seconds: float, call: Any) -> None:
        self._unset_timer()
        self._timer = self._loop.call_later(seconds, call)

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the application does.

    async def _run(self) -> None:
        try:
            await self._app(_scope(self._request), self._receive, self._send)
        except OSError:
            pass  # the client is gone
        except Exception:  # noqa: BLE001 - a fault of ours on one socket must not end the others
            _log.exception("a web socket failed")
        if self._phase is _Phase.ASKED:
            self._deny(500, [], b"")
        elif self._phase is not _Phase.CLOSING:
            self._leave(_CUT, "")
            self._end()

    async def _receive(self) -> Message:
        while not self._events:
            self._taker = self._loop.create_future()
            await self._taker
        event, size = self._events.popleft()
        self._held -= size
        if self._paused and self._held <= HELD and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()
        return event

    async def _send(self, message: Any) -> None:
        """Do what a message says. Raises BrokenPipeError when the client has gone, or was closed the door on."""
        if not self._room.is_set():
            await self._room.wait()
        if self._phase is _Phase.OPEN:
            self._say(message)
        elif self._phase is _Phase.ASKED:
            self._answer(message)
        elif self._phase is _Phase.DENIED:
            status, headers, body = self._denial
            self._denial = status, headers, body + message["body"]
            if not message.get("more_body"):
                self._deny(*self._denial)
        else:
            raise BrokenPipeError("the web socket is closed")

    def _say(self, message: Message) -> None:
        if message["type"] == "websocket.close":
            code, reason = message.get("code", 1000), message.get("reason") or ""
            self._frames.send_close(code, reason)
            self._tell({"type": "websocket.disconnect", "code": code, "reason": reason})
            self._phase = _Phase.CLOSING
            self._set_timer(CLOSE_SECONDS, self.transport.abort)
            if self._paused:  # the answer to it may come after much else
                self._paused = False
                self.transport.resume_reading()
        elif (data := message.get("bytes")) is not None:
            self._frames.send_binary(data)
        else:
            self._frames.send_text(message["text"].encode())
        self._write()

    def _answer(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            about = [
                (b"Upgrade", b"websocket"),
                (b"Connection", b"Upgrade"),
                (b"Sec-WebSocket-Accept", _key(self._request) or b""),
                *message.get("headers", ()),
            ]
            if protocol := message.get("subprotocol"):
                about.append((b"Sec-WebSocket-Protocol", protocol.encode("latin-1")))
            self.transport.write(_head(101, about))
            self._phase = _Phase.OPEN
            self._ping_later()
        elif message["type"] == "websocket.close":
            self._deny(403, [], b"")
        else:
            self._denial = message["status"], list(message.get("headers", ())), b""
            self._phase = _Phase.DENIED

    def _deny(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer as any other request is answered, and close."""
        given = {name.lower() for name, _ in headers}
        ours = {
            b"content-length": b"%d" % len(body),
            b"content-type": b"text/plain; charset=utf-8",
            b"date": formatdate(usegmt=True).encode(),
            b"connection": b"close",
        }
        more = [pair for pair in ours.items() if pair[0] not in given]
        self.transport.write(_head(status, [*headers, *more]) + body)
        self._leave(_CUT, "")
        self._end()

    def _end(self) -> None:
        """Close the connection, once what was written has left, if that is soon."""
        self.transport.close()
        self._set_timer(CLOSE_SECONDS, self.transport.abort)

    def _write(self) -> None:
        data = b"".join(self._frames.data_to_send())
        if data and not self.transport.is_closing():
            self.transport.write(data)


def _scope(request: Scope) -> Scope:
    """The scope of the web socket a request asks for."""
    offered = [value.decode("latin-1") for name, value in request["headers"] if name == b"sec-websocket-protocol"]
    return {
        **{name: value for name, value in request.items() if name != "method"},
        "type": "websocket",
        "scheme": "wss" if request["scheme"] == "https" else "ws",
        "subprotocols": [word.strip() for value in offered for word in value.split(",")],
        "state": {},
        "extensions": {"websocket.http.response": {}},
    }


def _key(request: Scope) -> bytes | None:
    """The key that answers a handshake; None when it is none that can be answered."""
    keys = [value for name, value in request["headers"] if name == b"sec-websocket-key"]
    versions = [value for name, value in request["headers"] if name == b"sec-websocket-version"]
    if request["method"] != "GET" or request["http_version"] != "1.1" or len(keys) != 1 or versions != [b"13"]:
        return None
    try:
        if len(base64.b64decode(keys[0], validate=True)) != 16:
            return None
    except binascii.Error:
        return None
    return accept_key(keys[0].decode()).encode()


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A status line and headers. Raises ValueError for a header that would be two."""
    lines = [b"%s: %s\r\n" % pair for pair in headers]
    if any(b"\r" in line[:-2] or b"\n" in line[:-2] for line in lines):
        raise ValueError("a line end within a header")
    phrase = HTTPStatus(status).phrase.encode() if status in _KNOWN else b""
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (status, phrase, b"".join(lines))


_KNOWN = frozenset(map(int, HTTPStatus))
