"""Answers that take long: a space goes out now and then, so that no client takes the server for dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.responses import Response, StreamingResponse

from forkyard.errors import ConfigError
from forkyard.server.bodies import GoneError
from forkyard.server.endpoints import Call
from forkyard.server.envelope import Answer, ApiError, error_body, success_body

BEAT_SECONDS = 10.0
"""Clients give up after 30 seconds without a byte."""

_log = logging.getLogger("forkyard.server")


async def kept_alive(call: Call, work: Coroutine[Any, Any, Answer], beat: float = BEAT_SECONDS) -> Answer | Response:
    """What a handler returns in place of awaiting `work`, which is cancelled when the client goes.

    What is done within one beat is answered as ever. After that status 200 has gone out, spaces follow, and a refusal
    is known by its body alone (`"success": false`), as clients read it.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=beat)
    except asyncio.CancelledError:
        await _ended(task)
        raise
    if task.done():
        return task.result()
    return StreamingResponse(_beats(call, task, beat), media_type="application/json")


async def while_there(call: Call, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `work` gives, which is cancelled when the client goes. Raises GoneError then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(call))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise GoneError
    finally:
        await _ended(gone)
        await _ended(task)


async def _gone(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def _beats(call: Call, task: asyncio.Task[Answer], beat: float) -> AsyncIterator[bytes]:
    try:
        while not task.done():
            yield b" "
            await asyncio.wait({task}, timeout=beat)
        yield _body(call, task)
    finally:
        await _ended(task)


def _body(call: Call, task: asyncio.Task[Answer]) -> bytes:
    try:
        return success_body(task.result())
    except ApiError as err:
        return error_body(err)
    except ConfigError as err:
        return error_body(ApiError(400, str(err)))
    except Exception as err:  # noqa: BLE001 - the status has gone out: what is left to tell it is the body
        request_id = call.request.scope["state"]["request_id"]
        _log.error("request %s failed", request_id, exc_info=err)
        return error_body(ApiError(500, f"the server failed; its log tells more of request {request_id}"))


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
