"""The engine's socket as a client has it: calls under numbers, any number of them at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from forkyard.errors import EngineLost, ForkyardError
from forkyard.sandbox.remote.frames import Body, Said, head_of, messages
from forkyard.sandbox.remote.streams import relayed
from forkyard.sandbox.remote.values import SMALL, BrokenWire, error_in, mapping
from forkyard.wire import ClosedError, RefusedError, Socket, Transport

PATH = "/api/engine"
HELLO_SECONDS, GIVE_UP_SECONDS, LEAVE_SECONDS = 10.0, 30.0, 60.0  # how long is waited for a server to do it
OnEvent = Callable[[str, bytes], None]
OnStream = Callable[[int, str], None]


class _Call:
    """One that is under way."""

    def __init__(self, limit: int, on_event: OnEvent | None) -> None:
        self.body = Body(limit)
        self.on_event = on_event
        self.answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        self.raised: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()  # by `on_event`


class Connection:
    """One session with a server; once it is lost, every call raises EngineLost. Made by `connected`."""

    def __init__(self, transport: Transport, socket: Socket, stack: AsyncExitStack) -> None:
        self._transport = transport
        self._socket = socket
        self._stack = stack
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._listeners: dict[int, OnStream] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._lost: EngineLost | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def lost(self) -> bool:
        """Whether it is."""
        return self._lost is not None

    async def call(
        self,
        do: str,
        args: Mapping[str, Any] | None = None,
        data: bytes = b"",
        *,
        limit: int = SMALL,
        on_event: OnEvent | None = None,
    ) -> Said:
        """Have something done. Raises what the server says it raised.

        Cancelled, it is cancelled there, and what it has made meanwhile is closed. An answer of more than `limit` bytes
        ends the session.
        """
        number = next(self._numbers)
        call = self._calls[number] = _Call(limit, on_event)
        try:
            await self._say({"id": number, "do": do}, args or {}, data)
            if on_event is None:
                return await asyncio.shield(call.answer)
            either: list[asyncio.Future[Any]] = [call.answer, call.raised]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if call.raised.done():
                await self._give_up(number, call)
                raise call.raised.result()
            return call.answer.result()
        except asyncio.CancelledError:
            await self._give_up(number, call)
            raise
        finally:
            self._calls.pop(number, None)

    async def hello(self) -> Said:
        """What the server says first. RefusedError when that is nothing."""
        greeting = asyncio.create_task(self.call("hello"))
        await asyncio.wait([greeting], timeout=HELLO_SECONDS)
        if not greeting.done():
            self._end("it says nothing")  # which ends the call
        try:
            return await greeting
        except EngineLost as err:
            raise RefusedError(0, str(err)) from err

    async def _say(self, head: Mapping[str, Any], value: Any = None, data: bytes = b"") -> None:
        try:
            for message in messages(head, value, data):
                if self._lost is not None:
                    raise self._lost
                await self._socket.send(message)
        except ClosedError as err:
            raise self._end(str(err)) from None

    async def _give_up(self, number: int, call: _Call) -> None:
        call.on_event = None
        with suppress(ForkyardError, OSError, ValueError, TimeoutError):
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._say({"cancel": number})
                said = await asyncio.shield(call.answer)
            if isinstance(said.value, dict) and "box" in said.value:
                await self.call("close", {"box": said.value["box"]})

    async def _read(self) -> None:
        why = "the connection was lost"
        try:
            while True:
                self._hear(await self._socket.receive())
        except ClosedError as err:
            why = str(err)
        except ValueError as err:
            why = f"the server does not keep to the protocol: {err}"
        finally:
            self._end(why)

    def _hear(self, message: str | bytes) -> None:
        head, piece = head_of(message)
        if "stream" in head:
            self._open_stream(head)
            return
        number = head.get("id")
        if not isinstance(number, int):
            raise BrokenWire("an answer without a number")
        if (call := self._calls.get(number)) is None:  # it was given up
            return
        if "event" in head:
            self._tell(call, head, piece)
            return
        call.body.add(piece)
        if "part" in head or call.answer.done():
            return
        said = call.body.said(head)
        if "error" in head:
            call.answer.set_exception(error_in(said.value))
            call.answer.exception()  # seen, also when nobody waits any more
        else:
            call.answer.set_result(said)

    def _tell(self, call: _Call, head: Mapping[str, Any], piece: memoryview) -> None:
        body = Body(len(piece))
        body.add(piece)
        said = body.said(head)
        if call.on_event is None or call.answer.done() or head["event"] not in ("stdout", "stderr"):
            return
        try:
            call.on_event(head["event"], said.data)
        except Exception as err:  # noqa: BLE001 - the caller's own: it is raised there
            call.on_event = None
            call.raised.set_result(err)

    def _end(self, why: str) -> EngineLost:
        if self._lost is None:
            self._lost = EngineLost(f"the server with this sandbox is lost: {why}")
            for call in self._calls.values():
                if not call.answer.done():
                    call.answer.set_exception(self._lost)
                    call.answer.exception()
            for task in self._streams:
                task.cancel()
        return self._lost

    # Streams: connections of ports, each over a web socket of its own.

    def on_stream(self, listener: int, then: OnStream) -> None:
        """Whom to tell of what connects to a port that is listened on: its number, and the stream's token."""
        self._listeners[listener] = then

    def _open_stream(self, head: Mapping[str, Any]) -> None:
        listener, token = head.get("listener"), head["stream"]
        if not isinstance(listener, int) or not isinstance(token, str):
            raise BrokenWire("no stream")
        if (then := self._listeners.get(listener)) is not None:
            then(listener, token)

    def relay(self, token: str, sock: Any) -> None:
        """Pass bytes between a stream of the server's and a socket, which is closed at the end."""
        task = asyncio.create_task(self._relayed(token, sock))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def _relayed(self, token: str, sock: Any) -> None:
        with sock, suppress(ClosedError, RefusedError):
            if not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
                return
            async with self._transport.socket(f"{PATH}/streams/{token}") as stream:
                await relayed(sock, stream.send, stream.receive)

    def refuse(self, token: str) -> None:
        """Nobody serves what a stream came for: the server is to close it."""
        task = asyncio.create_task(self._refused(token))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def _refused(self, token: str) -> None:
        with suppress(ForkyardError):
            await self.call("refuse", {"stream": token})

    async def abandon(self) -> None:
        """Leave without a word: it is no server that can be talked to."""
        self._end("it was left")
        await self.close()

    async def close(self) -> None:
        """End the session: the server ends what was made in it before this returns, as far as it can be reached."""
        if self._lost is None:
            with suppress(ForkyardError, ValueError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self.call("leave")
        self._end("it was closed")
        self._reading.cancel()
        streams = list(self._streams)
        for task in streams:
            task.cancel()
        await asyncio.gather(self._reading, *streams, return_exceptions=True)
        await self._stack.aclose()


async def connected(transport: Transport) -> tuple[Connection, Mapping[str, Any]]:
    """A session, and what the server says of its provider. Raises RefusedError."""
    async with AsyncExitStack() as stack:
        socket = await stack.enter_async_context(transport.socket(PATH))
        connection = Connection(transport, socket, stack.pop_all())
    try:
        said = await connection.hello()
        return connection, mapping(said.value)
    except BaseException:
        await connection.abandon()
        raise
