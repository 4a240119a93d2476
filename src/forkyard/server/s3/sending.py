"""Answers on their way: in pieces to readers who may stop or leave, and kept alive while work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Send

from forkyard.disk import Reading
from forkyard.server.s3.replies import Reply
from forkyard.server.s3.xml import HEAD

SILENCE = 10.0
"""Seconds after which work that goes on is heard of: clients give up on a silent server after 30 and more."""

_BODILESS = (204, 304)
_WATCHED = 1 << 20
"""Bytes from which on an answer looks out for a client that leaves in the middle."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way back to one client."""

    method: str
    request_id: str
    receive: Receive
    send: Send
    silence: float = SILENCE

    async def tell(self, reply: Reply) -> None:
        """Send an answer; an object is sent piece by piece as the client takes it."""
        if reply.status not in _BODILESS:
            reply.headers.setdefault("Content-Length", str(len(reply.body)))
        if reply.reading is None:
            await self._begin(reply)
            await self._piece(b"" if self.method == "HEAD" else reply.body, more=False)
            return
        try:
            await self._begin(reply)
            async with _watch(reply.reading, self.receive) as gone:
                async for piece in reply.reading:
                    if gone.is_set():
                        return
                    await self._piece(piece)
            await self._piece(b"", more=False)
        finally:
            await reply.reading.close()

    async def tell_when_done(self, working: Coroutine[Any, Any, Reply]) -> None:
        """Send the document that work ends in. If that takes long, spaces come first and failure is a 200, as in S3."""
        work = asyncio.create_task(working)
        try:
            done, _ = await asyncio.wait((work,), timeout=self.silence)
            if done:
                await self.tell(work.result())
                return
            await self._begin(Reply(200, {"Content-Type": "application/xml"}))
            await self._piece(HEAD.encode())
            while not done:
                await self._piece(b" ")
                done, _ = await asyncio.wait((work,), timeout=self.silence)
            await self._piece(work.result().body.removeprefix(HEAD.encode()), more=False)
        finally:
            work.cancel()

    async def _begin(self, reply: Reply) -> None:
        given = {**reply.headers, "x-amz-request-id": self.request_id}
        headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def _piece(self, piece: bytes, *, more: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": piece, "more_body": more})


@asynccontextmanager
async def _watch(reading: Reading, receive: Receive) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client leaves: what is sent to nobody vanishes without an error."""
    gone = asyncio.Event()
    if reading.stop - reading.start < _WATCHED:
        yield gone
        return

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watcher = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watcher.cancel()
        await asyncio.wait((watcher,))
