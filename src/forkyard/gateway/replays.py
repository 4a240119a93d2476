"""Requests that a client sends again: one call for all of them, on the record once, and the same reply to each.

A client says that it tries again by the `Idempotency-Key` of before, or, as the clients of OpenAI and Anthropic do, by
counting its tries. What failed is not kept: the next try is a call of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from forkyard.gateway.call import Call
from forkyard.gateway.exchange import Incoming, Outgoing, Pieces
from forkyard.gateway.headers import value_of
from forkyard.gateway.terms import RefusedError
from forkyard.values import MIB

if TYPE_CHECKING:
    from forkyard.gateway.route import Route

KEPT_SECONDS = 600.0
KEPT_REPLIES = 64
KEPT_BYTES = 16 * MIB
"""What the replies kept for one rollout may come to; larger ones are not kept."""
LINGER = 10.0
"""How long a call whose client has gone is carried on for the next try: clients wait at most 8 s before it."""

Work = Callable[[], Coroutine[Any, Any, tuple[Call, Outgoing]]]


class _Tried:
    """One request under way, or answered; `reply` is whole and good."""

    def __init__(self, asked: bytes) -> None:
        self.asked = asked
        self.reply: Outgoing | None = None
        self.size = 0
        self.at = time.monotonic()
        self.ended = asyncio.Event()
        self.work: asyncio.Task[tuple[Call, Outgoing]] | None = None
        self._waiting = 0
        self._leaving: asyncio.TimerHandle | None = None

    async def wait(self, what: Awaitable[Any]) -> None:
        """Wait for something as one of those who want the reply; when the last has gone, the call soon ends."""
        self._waiting += 1
        if self._leaving is not None:
            self._leaving.cancel()
        try:
            await what
        finally:
            self._waiting -= 1
            if self.work is not None and not self._waiting and not self.work.done():
                self.work.add_done_callback(_looked_at)
                self._leaving = asyncio.get_running_loop().call_later(LINGER, self.work.cancel)


class Replays:
    """Those of one rollout."""

    def __init__(self) -> None:
        self._tried: dict[bytes, _Tried] = {}  # the one that ended first comes first

    async def answered(self, route: Route, request: Incoming, work: Work, *, streamed: bool) -> Outgoing:
        """The reply that `work` brings, or brought when the request came before. Raises what `work` raises, and
        RefusedError when its key was another request's.
        """
        key, again = _key(request)
        if key is None:
            return (await work())[1]
        asked = _digest(request)
        while again and (tried := self._find(key)) is not None:
            if tried.asked != asked:
                raise RefusedError(400, "the Idempotency-Key was sent with another request", "idempotency_key_reused")
            if tried.reply is not None:
                return tried.reply
            await tried.wait(tried.ended.wait())
        tried = self._tried[key] = _Tried(asked)
        if streamed:
            return await self._streamed(key, tried, work)
        tried.work = route.begin(self._whole(key, tried, work))
        await tried.wait(asyncio.wait((tried.work,)))
        return tried.work.result()[1]

    async def _whole(self, key: bytes, tried: _Tried, work: Work) -> tuple[Call, Outgoing]:
        try:
            call, reply = await work()
            self._keep(tried, call, reply)
            return call, reply
        finally:
            self._end(key, tried)

    async def _streamed(self, key: bytes, tried: _Tried, work: Work) -> Outgoing:
        """One that its client reads as it comes; who asks again meanwhile waits for its end."""
        try:
            call, reply = await work()
        except BaseException:
            self._end(key, tried)
            raise
        if isinstance(reply.body, bytes):
            self._keep(tried, call, reply)
            self._end(key, tried)
            return reply

        def over(body: bytes | None) -> None:
            if body is not None:
                self._keep(tried, call, replace(reply, body=body))
            self._end(key, tried)

        return replace(reply, body=_Watched(reply.body, over))

    def _find(self, key: bytes) -> _Tried | None:
        """What was tried under a key and is under way, or not too old."""
        tried = self._tried.get(key)
        if tried is None or tried.reply is None or time.monotonic() - tried.at < KEPT_SECONDS:
            return tried
        del self._tried[key]
        return None

    def _keep(self, tried: _Tried, call: Call, reply: Outgoing) -> None:
        if call.good and isinstance(reply.body, bytes) and len(reply.body) <= KEPT_BYTES:
            tried.reply, tried.size = reply, len(reply.body)

    def _end(self, key: bytes, tried: _Tried) -> None:
        tried.at = time.monotonic()
        tried.ended.set()
        if self._tried.get(key) is tried:
            del self._tried[key]
            if tried.reply is not None:
                self._tried[key] = tried
        kept = [key for key, each in self._tried.items() if each.reply is not None]
        while len(kept) > KEPT_REPLIES or sum(self._tried[key].size for key in kept) > KEPT_BYTES:
            del self._tried[kept.pop(0)]


class _Watched:
    """A body on its way. `over` is told all of it once, or None when it broke off or is too large to keep."""

    def __init__(self, pieces: Pieces, over: Callable[[bytes | None], object]) -> None:
        self._pieces = pieces
        self._over: Callable[[bytes | None], object] | None = over
        self._seen = bytearray()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self._tell(bytes(self._seen) if len(self._seen) <= KEPT_BYTES else None)
            raise
        if len(self._seen) <= KEPT_BYTES:
            self._seen += piece
        return piece

    async def aclose(self) -> None:
        try:
            await self._pieces.aclose()
        finally:
            self._tell(None)

    def _tell(self, body: bytes | None) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(body)


def _looked_at(work: asyncio.Task[Any]) -> None:
    """What went wrong is on the record, and nobody is left to be told."""
    if not work.cancelled():
        work.exception()


def _key(request: Incoming) -> tuple[bytes | None, bool]:
    """What a request is known by, None for nothing, and whether it may be one that came before.

    The same bytes again are a turn of their own, unless the client says that it tries again.
    """
    if given := value_of(request.headers, b"idempotency-key"):
        return b"key " + hashlib.sha256(given.encode()).digest(), True
    tries = value_of(request.headers, b"x-stainless-retry-count")
    if not tries:
        return None, False
    return b"body " + _digest(request), tries != "0"


def _digest(request: Incoming) -> bytes:
    return hashlib.sha256(f"{request.path}?{request.query}\n".encode() + request.body).digest()
