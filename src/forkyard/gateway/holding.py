"""Replies that a task's code looks at: nothing of them passes before it has, and before they are on the record."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from forkyard.errors import TaskError
from forkyard.gateway.call import GONE, Call
from forkyard.gateway.decoding import read_json
from forkyard.gateway.exchange import Outgoing, read_reply
from forkyard.gateway.headers import back, value_of
from forkyard.gateway.hooks import reply_passed
from forkyard.gateway.observer import Guard, StreamObserver, read_whole
from forkyard.gateway.pool import Reply
from forkyard.gateway.terms import StopError

if TYPE_CHECKING:
    from forkyard.gateway.route import Route

KEPT_ALIVE = 3.0
"""Seconds between two signs to a client that wants a stream, and has its head, that somebody is still there."""
_SIGN = b": still waiting\n\n"


async def held(route: Route, call: Call, response: Reply, hide_usage: bool) -> Outgoing:
    """The reply once it has passed the task's code. Raises UpstreamError and TaskError."""
    streamed = value_of(response.headers, b"content-type").lower().startswith("text/event-stream")
    work = asyncio.create_task(_passed(route, call, response, streamed, hide_usage))
    try:
        done, _ = await asyncio.wait((work,), timeout=route.bounds.silence if streamed else None)
    except asyncio.CancelledError:
        await _ended(work)
        raise
    if done:
        return work.result()
    return Outgoing(200, back(response.headers, rewritten=True), _KeptAlive(work))


class _KeptAlive:
    """Signs of life, and the whole body once it is there."""

    def __init__(self, work: asyncio.Task[Outgoing]) -> None:
        self._work = work
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        if not self._work.done():
            await asyncio.wait((self._work,), timeout=KEPT_ALIVE)
        self._over = self._work.done()
        body = self._work.result().body if self._over else _SIGN
        return body if isinstance(body, bytes) else b""

    async def aclose(self) -> None:
        await _ended(self._work)


async def _ended(work: asyncio.Task[Any]) -> None:
    work.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(work, return_exceptions=True)


async def _passed(route: Route, call: Call, response: Reply, streamed: bool, hide_usage: bool) -> Outgoing:
    try:
        return await _shown(route, call, response, streamed, hide_usage)
    except BaseException as err:
        call.end(error=GONE if isinstance(err, asyncio.CancelledError) else str(err))
        raise


async def _shown(route: Route, call: Call, response: Reply, streamed: bool, hide_usage: bool) -> Outgoing:
    dialect, body = call.draft.dialect, call.draft.body
    raw, plain = await read_reply(route, call.draft.upstream, response)
    observer = StreamObserver(dialect, "", Guard(()), hide_usage)
    shown = observer.feed(plain) + observer.end() if streamed else raw
    answered, problem = observer.answered() if streamed else read_whole(dialect, plain)
    said = stop = None
    if problem is None:
        try:
            answered, said, stop = await reply_passed(call, answered)
        except TaskError as err:
            call.end(answered)
            route.failure = route.failure or err
            raise
    call.end(answered, problem)
    if stop is not None:
        route.stop(StopError(stop))
    rewritten = said is not None or (streamed and hide_usage)
    if said is not None:
        new = dialect.resaid(observer.so_far() if streamed else read_json(plain), said)
        options = body.get("stream_options")
        usage = isinstance(options, dict) and bool(options.get("include_usage"))
        shown = dialect.streamed(new, usage) if streamed else json.dumps(new).encode()
    elif not rewritten:
        shown = raw
    return Outgoing(200, back(response.headers, rewritten=rewritten), shown)
