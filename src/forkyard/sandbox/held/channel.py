"""The host's end of a sandbox's socket: requests out, answers in, everything that arrives held hostile."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.inside import wire

REPLY_LIMIT = 64 << 10
REPLY_TIMEOUT = ROOM_TIMEOUT = 60.0
TEXT_LIMIT = 4000

Reply = tuple[dict[str, Any], list[int]]


class Interrupted(Exception):
    """The wait for an answer was ended before it came: it comes to `later`."""

    def __init__(self, later: asyncio.Future[Reply]) -> None:
        super().__init__()
        self.later = later


class CwdError(OSError):
    """A command did not start because of its working directory."""


def _drop(answer: asyncio.Future[Reply]) -> None:
    """Nobody takes this answer: close what came with it."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        for fd in answer.result()[1]:
            os.close(fd)


class Channel:
    """Pairs answers with requests by id. One per live sandbox, used from one event loop."""

    def __init__(self, sock: socket.socket, on_end: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._waiting: dict[int, tuple[str, asyncio.Future[Reply]]] = {}
        self._forgotten: dict[int, str] = {}  # requests whose answers will be thrown away
        self._next = 0
        self._sending = asyncio.Lock()
        self._late = 0  # how many wait for it
        self._room = asyncio.Event()  # in the socket, for whoever sends
        self._on_end = on_end
        self.ended: str | None = None
        self._loop.add_reader(self._fd, self._readable)

    async def request(self, op: str, *fds: int, **fields: Any) -> Reply:
        """Send one request and wait for its answer. OSError and ValueError are the sandbox's refusals."""
        request = self.new_id()
        try:
            async with asyncio.timeout(REPLY_TIMEOUT):
                answer = await self.post(request, op, list(fds), **fields)
                try:
                    return checked(await answer)
                except asyncio.CancelledError:
                    _drop(answer)
                    raise
        except TimeoutError:
            raise SandboxError(f"the sandbox did not answer a {op!r} within {REPLY_TIMEOUT:.0f} s") from None
        finally:
            self.forget(request)

    def new_id(self) -> int:
        """An id for a request."""
        self._next += 1
        return self._next

    async def post(self, request: int, op: str, fds: list[int], **fields: Any) -> asyncio.Future[Reply]:
        """Send one request; its answer comes to the returned future. `forget` it when nobody waits any more."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[request] = op, answer
        try:
            await self.send({"op": op, "id": request, **fields}, fds)
        except BaseException:
            self.forget(request)
            raise
        return answer

    def interrupt(self, request: int) -> bool:
        """Raise Interrupted where this answer is waited for; whether anybody still did."""
        op, answer = self._waiting.get(request, ("", None))
        if answer is None or answer.done():
            return False
        later: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[request] = op, later
        answer.set_exception(Interrupted(later))
        answer.exception()  # seen: its waiter may be cancelled before it gets it
        return True

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to this request any more."""
        if waiting := self._waiting.pop(request, None):
            self._forgotten[request] = waiting[0]

    async def send(self, message: dict[str, Any], fds: list[int]) -> None:
        """Send one message and wait for no answer; TimeoutError when there is no room for it.

        Once begun it is sent whole, also when the caller is cancelled.
        """
        data = memoryview(wire.encode(message))
        busy = self._late or self._sending.locked()
        left = data if busy else self._put(data, fds)
        if left:
            async with asyncio.timeout(ROOM_TIMEOUT):
                await self._send_late(data, left, fds)

    async def _send_late(self, data: memoryview, left: memoryview, fds: list[int]) -> None:
        """Send a message of which `left` is still to go, when the one before has gone and there is room."""
        self._late += 1
        try:
            await self._sending.acquire()
        finally:
            self._late -= 1
        try:
            while len(left) == len(data):
                await self._writable()
                left = self._put(data, fds)
        finally:
            if not 0 < len(left) < len(data):
                self._sending.release()
        if left:
            rest = self._loop.create_task(self._send_rest(left))
            rest.add_done_callback(self._sent)
            await asyncio.shield(rest)

    def _put(self, data: memoryview, fds: list[int]) -> memoryview:
        """Send as much as there is room for; what is left."""
        self._check()
        try:
            return data[self._sock.sendmsg([data], wire.ancillary(fds)) :]
        except BlockingIOError:
            return data
        except OSError:
            self.end("its PID 1 is gone")
            self._check()
            raise

    async def _send_rest(self, left: memoryview) -> None:
        while left:
            await self._writable()
            left = self._put(left, [])

    def _sent(self, rest: asyncio.Task[None]) -> None:
        """Let the next message begin: half a one before it would garble both."""
        self._sending.release()
        if not rest.cancelled():
            rest.exception()  # that the sandbox is gone: whoever still waits is told

    async def _writable(self) -> None:
        """Wait for room, or for the end of the sandbox."""
        self._room = asyncio.Event()
        self._loop.add_writer(self._fd, self._room.set)
        try:
            await self._room.wait()
        finally:
            if self.ended is None:
                self._loop.remove_writer(self._fd)

    def _check(self) -> None:
        if self.ended is not None:
            raise SandboxLost(f"the sandbox is gone: {self.ended}")

    def _readable(self) -> None:
        try:
            data, control = wire.receive_some(self._sock, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data, control = b"", []
        self._fds.extend(wire.received_fds(control))
        if not data:
            self.end("its PID 1 ended")
            return
        self._buffer += data
        try:
            for message in wire.split(self._buffer, REPLY_LIMIT):
                self._dispatch(message)
            if len(self._fds) > wire.MAX_FDS:  # an answer that is still under way has no more
                raise ValueError("descriptors that belong to no answer")
        except ValueError as err:
            self.end(f"it sent nonsense ({str(err)[:TEXT_LIMIT]})")

    def _dispatch(self, message: dict[str, Any]) -> None:
        request: Any = message.get("id")
        if request == 0:  # no answer: what PID 1 ends of, before it serves or afterwards
            self.end(f"its PID 1 failed: {str(message.get('message'))[:TEXT_LIMIT]}")
            return
        count = wire.answer_to(self._asked(request), message)
        if count > len(self._fds):
            raise ValueError("an answer without its descriptors")
        fds = [self._fds.popleft() for _ in range(count)]
        self._forgotten.pop(request, None)
        if (waiting := self._waiting.pop(request, None)) and not waiting[1].done():
            waiting[1].set_result((message, fds))
            return
        for fd in fds:  # nobody waits for it any more
            os.close(fd)

    def _asked(self, request: Any) -> str:
        """What was asked under this id; ValueError when nothing was, or when it was answered before."""
        if type(request) is int:
            if waiting := self._waiting.get(request):
                return waiting[0]
            if op := self._forgotten.get(request):
                return op
        raise ValueError("an answer to nothing that was asked")

    def end(self, why: str) -> None:
        """The sandbox is gone: close the socket and fail everyone who waits."""
        if self.ended is not None:
            return
        self.ended = why
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._room.set()  # whoever sends finds out
        self._sock.close()
        for fd in self._fds:
            os.close(fd)
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxLost(f"the sandbox is gone: {why}"))
                future.exception()  # seen: whoever still waits gets it, and nobody has to
        self._waiting.clear()
        self._on_end()


def checked(reply: Reply) -> Reply:
    """The reply, unless it says that the request failed: OSError, ValueError for an unknown user, or SandboxError."""
    message, _ = reply
    if message["event"] != "failed":
        return reply
    number, text, path = message.get("errno"), str(message.get("message"))[:TEXT_LIMIT], message.get("path")
    if isinstance(number, int):
        kind = CwdError if message.get("what") == "cwd" else OSError
        raise kind(number, text, path if isinstance(path, str) else None)
    if message.get("what") == "user":
        raise ValueError(text)
    raise SandboxError(text)  # PID 1 could not do it: whatever the reason, the guest may have had a hand in it
