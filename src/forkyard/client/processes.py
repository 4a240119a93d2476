"""A process in a sandbox as a program has it: over a web socket of its own."""

from __future__ import annotations

import asyncio
import codecs
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from forkyard.client.given import command_text, terminal_size
from forkyard.client.talk import Talk
from forkyard.client.values import ExecResult
from forkyard.client.verbs import verb
from forkyard.sandbox import Terminal
from forkyard.wire import ClosedError, RefusedError, Socket

KEPT = 64 << 20
"""Characters of each stream that are kept of one process: the newest."""
_FRAME = struct.Struct(">BQ")
_STREAMS = {1: "stdout", 2: "stderr"}
_PIECE = 256 << 10
_NORMAL = 1000


@asynccontextmanager
async def process_socket(talk: Talk, sandbox_id: str) -> AsyncIterator[Socket]:
    """A socket for one process, or for one word to it."""
    connection = await talk.ask("POST", f"/api/sandboxes/{quote(sandbox_id, safe='')}/connections")
    # It is the same server's, whatever name it has for itself: the key goes nowhere else.
    async with talk.transport.socket(urlsplit(str(connection["url"])).path) as socket:
        yield socket


async def said(socket: Socket, message: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """What is answered to a first message. RefusedError when it is something else."""
    await socket.send(json.dumps({name: value for name, value in message.items() if value is not None}))
    return expected(await socket.receive(), answer)


def expected(message: str | bytes, kind: str) -> dict[str, Any]:
    """A message in JSON of that kind. RefusedError when it tells of an error, or is another."""
    try:
        told = json.loads(message) if isinstance(message, str) else None
    except ValueError:
        told = None
    if isinstance(told, dict) and told.get("type") == kind:
        return told
    if isinstance(told, dict) and told.get("type") == "error":
        raise RefusedError(409, str(told.get("message"))[:2000], str(told.get("error"))[:100])
    raise RefusedError(0, f"the server said something else than {kind!r} on a process socket")


class _Text:
    """One stream as text, its newest part."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._dropped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: deque[str] = deque()
        self._size = 0

    def add(self, data: bytes, *, final: bool = False) -> None:
        piece = self._decoder.decode(data, final)
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        while self._pieces and self._size - len(self._pieces[0]) >= self._kept:
            self._size -= len(self._pieces.popleft())
            self._dropped = True

    @property
    def truncated(self) -> bool:
        """Whether there was more."""
        return self._dropped or self._size > self._kept

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = deque(["".join(self._pieces)])
        return self._pieces[0][-self._kept :] if self._pieces else ""


class SandboxProcess:
    """A process that is looked on at. It goes on when it is not; `status` is "running" until its end is known."""

    def __init__(self, talk: Talk, sandbox_id: str, process_id: str, socket: Socket, stack: AsyncExitStack) -> None:
        self._talk = talk
        self._sandbox_id = sandbox_id
        self._socket = socket
        self._stack = stack
        self._text = {"stdout": _Text(), "stderr": _Text()}
        self._end: dict[str, Any] = {}
        self._gap = False  # some of its output was never sent: it was forgotten before this client came to it
        self.id = process_id
        self.cursor = 0
        self.connected = True
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(_looked_at)

    @property
    def status(self) -> str:
        """running, completed, failed, cancelled or timed_out."""
        return str(self._end.get("status", "running"))

    @property
    def stdout(self) -> str:
        """What it wrote so far, as far as it has come."""
        return str(self._text["stdout"])

    @property
    def stderr(self) -> str:
        """The same of its standard error."""
        return str(self._text["stderr"])

    @property
    def truncated(self) -> bool:
        """Whether there was more output than is here: of each stream the newest 67,108,864 characters are kept.

        To whoever attaches late the server has the newest megabyte to tell.
        """
        return self._gap or any(text.truncated for text in self._text.values())

    @verb
    async def send_input(self, data: str | bytes) -> None:
        """Give it input."""
        data = data.encode() if isinstance(data, str) else data
        for at in range(0, len(data), _PIECE):
            await self._socket.send(data[at : at + _PIECE])

    @verb
    async def close_stdin(self) -> None:
        """End its input."""
        with suppress(ClosedError):  # it has ended
            await self._socket.send('{"type": "close_stdin"}')

    @verb
    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size. ValueError for one that is none, RefusedError when it has no terminal."""
        size = Terminal(cols, rows)
        async with process_socket(self._talk, self._sandbox_id) as socket:
            message = {"type": "resize", "process_id": self.id, "cols": size.cols, "rows": size.rows}
            await said(socket, message, "resized")

    @verb
    async def kill(self) -> None:
        """Kill it and all it started."""
        async with process_socket(self._talk, self._sandbox_id) as socket:
            await said(socket, {"type": "kill", "process_id": self.id}, "killed")

    @verb
    async def wait(self) -> ExecResult:
        """How it ended, once it has. ClosedError when the connection is lost before: attach to it again."""
        await asyncio.shield(self._reading)
        beside = {name: self._end.get(name) for name in ("exit_code", "exit_reason")}
        text = {"stdout": self.stdout, "stderr": self.stderr}
        return ExecResult(status=self.status, **text, truncated=self.truncated, **beside)

    @verb
    async def disconnect(self) -> None:
        """Look on no longer; it goes on."""
        self.connected = False
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._stack.aclose()

    async def _read(self) -> None:
        try:
            while not self._end:
                message = await self._socket.receive()
                if isinstance(message, bytes):
                    stream, data, moved = frame(message, self.cursor)
                    self._gap = self._gap or (moved is not None and moved > len(data))
                    self.cursor += len(data) if moved is None else moved
                    self._text[stream].add(data)
                else:
                    self._end = expected(message, "exit")
                    self._gap = self._gap or int(self._end.get("cursor", 0)) > self.cursor
            for text in self._text.values():
                text.add(b"", final=True)
        finally:
            self.connected = False


def _looked_at(reading: asyncio.Task[None]) -> None:
    """That a connection was lost is told to who waits; nobody may, and that is no fault."""
    if not reading.cancelled():
        reading.exception()


def frame(message: bytes, cursor: int) -> tuple[str, bytes, int | None]:
    """A piece of output beyond a cursor: its stream, its bytes, and by how much the cursor moves if not by those."""
    if len(message) < _FRAME.size or message[0] not in _STREAMS:
        raise RefusedError(0, "the server sent no piece of output on a process socket")
    number, offset = _FRAME.unpack_from(message)
    data = message[_FRAME.size :]
    if offset + len(data) <= cursor:
        return _STREAMS[number], b"", 0
    if offset < cursor:
        return _STREAMS[number], data[cursor - offset :], None
    return _STREAMS[number], data, offset + len(data) - cursor


async def started(
    talk: Talk,
    sandbox_id: str,
    command: str,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_seconds: float | None = None,
    terminal: Terminal | Mapping[str, int] | None = None,
) -> SandboxProcess:
    """A process of its own. RefusedError when it cannot be started."""
    first = {
        "type": "start",
        "command": command_text(command),
        "terminal": terminal_size(terminal),
        "env": dict(env or {}),
        "cwd": cwd,
        "timeout_seconds": timeout_seconds,
    }
    return await _looked_on(talk, sandbox_id, first, "started")


async def attached(talk: Talk, sandbox_id: str, process_id: str, offset: int) -> SandboxProcess:
    """A process that is there already. RefusedError when it is not."""
    first = {"type": "attach", "process_id": process_id, "offset": offset}
    process = await _looked_on(talk, sandbox_id, first, "attached")
    process.cursor = offset
    return process


async def _looked_on(talk: Talk, sandbox_id: str, first: Mapping[str, Any], answer: str) -> SandboxProcess:
    async with AsyncExitStack() as stack:
        socket = await stack.enter_async_context(process_socket(talk, sandbox_id))
        told = await said(socket, first, answer)
        return SandboxProcess(talk, sandbox_id, str(told.get("process_id")), socket, stack.pop_all())
