"""A provider that speaks the three dialects over real HTTP, plays scripted faults, and keeps every byte."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from forkyard.gateway import NO_BUDGET, Bounds, Budget, Gateway, Prices, Upstream, Upstreams
from forkyard.gateway.gateway import PATIENT
from forkyard.gateway.prices import Price
from forkyard.model import Place

KEY = "zq-9f31c0ffee-not-a-known-prefix"
PRICES = Prices((Price(model="priced*", input=1.0, cached=0.5, output=2.0),))


@dataclass
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    cut: bool = False  # the client went before it had its reply

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Play:
    """One reply: its head and pieces of its body. `hold` before a piece waits until the test lets go."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    pieces: Sequence[bytes] = ()
    hold_at: int | None = None
    reset_at: int | None = None
    chunked: bool = False


def whole(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Play:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Play(status, {"content-type": "application/json", **(headers or {})}, [data])


def zipped(body: Any) -> Play:
    return Play(200, {"content-type": "application/json", "content-encoding": "gzip"}, [gzip.compress(body)])


def events(*pieces: bytes, **more: Any) -> Play:
    return Play(200, {"content-type": "text/event-stream; charset=utf-8"}, pieces, chunked=True, **more)


def sse(event: Any, name: str | None = None) -> bytes:
    data = event if isinstance(event, str) else json.dumps(event)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def chat_body(content: str | None = "hi", usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "provider-name",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if more else "stop"}],
        "usage": usage,
        "unknown_to_us": {"kept": True},
    }


def chat_chunks(*deltas: dict[str, Any], reason: str = "stop", usage: Any = USAGE) -> list[bytes]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "provider-name"}
    told = [
        sse(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in ({"role": "assistant", "content": ""}, *deltas)
    ]
    told.append(sse(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
    if usage:
        told.append(sse(head | {"choices": [], "usage": usage}))
    return [*told, sse("[DONE]")]


@dataclass
class Provider:
    """Plays its replies in order, the last one for ever; or asks `answer` for each."""

    plays: list[Play] = field(default_factory=list)
    answer: Callable[[Seen], Play] | None = None
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    now: int = 0
    most: int = 0
    more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def busy(self, number: int) -> None:
        """Wait until so many requests are being answered at once."""
        async with self.more:
            await self.more.wait_for(lambda: self.now >= number)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        seen = Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.seen.append(seen)
        play = self.answer(seen) if self.answer else self.plays[min(len(self.seen) - 1, len(self.plays) - 1)]
        self.now += 1
        self.most = max(self.most, self.now)
        async with self.more:
            self.more.notify_all()
        try:
            return await self._play(play, seen, reader, writer)
        finally:
            self.now -= 1

    async def _play(self, play: Play, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        headers = dict(play.headers)
        size = sum(map(len, play.pieces))
        headers |= {"transfer-encoding": "chunked"} if play.chunked else {"content-length": str(size)}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if play.hold_at == -1 and not await self._hold(seen, reader):
            return False
        writer.write(f"HTTP/1.1 {play.status} Said\r\n{head}\r\n".encode())
        for place, piece in enumerate(play.pieces):
            if play.hold_at == place and not await self._hold(seen, reader):
                return False
            if play.reset_at == place:
                await writer.drain()
                writer.transport.abort()
                return False
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if play.chunked else piece)
            await writer.drain()
        if play.chunked:
            writer.write(b"0\r\n\r\n")
        self.sent.append(b"".join(play.pieces))
        await writer.drain()
        return True

    async def _hold(self, seen: Seen, reader: asyncio.StreamReader) -> bool:
        """Wait for the gate; False when the client goes before."""
        self.held.set()
        gate, gone = asyncio.create_task(self.gate.wait()), asyncio.create_task(reader.read(1))
        await asyncio.wait((gate, gone), return_when=asyncio.FIRST_COMPLETED)
        seen.cut = gone.done()
        for task in (gate, gone):
            task.cancel()
        await asyncio.gather(gate, gone, return_exceptions=True)
        if seen.cut:
            self.cut.set()
        return not seen.cut


@asynccontextmanager
async def providing(*plays: Play, answer: Callable[[Seen], Play] | None = None) -> AsyncIterator[Provider]:
    provider = Provider(list(plays), answer)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(asyncio.CancelledError):  # at the end of the test
            await provider.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
        provider.gate.set()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def table(provider: Provider, **fields: Any) -> Upstreams:
    """The provider in every dialect; OpenAI's URLs end in /v1."""
    return Upstreams(
        (
            Upstream(Place(f"{provider.url}/v1"), KEY, dialects=("chat", "responses"), **fields),
            Upstream(Place(provider.url), KEY, dialects=("messages",), **fields),
        )
    )


@asynccontextmanager
async def gateway_to(
    provider: Provider, budget: Budget = NO_BUDGET, bounds: Bounds = PATIENT, **fields: Any
) -> AsyncIterator[Gateway]:
    gateway = Gateway(table(provider, **fields), PRICES, budget, bounds=bounds)
    try:
        yield gateway
    finally:
        await gateway.close()
