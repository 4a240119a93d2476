"""Requests of programs in a sandbox to tools: bounded before anybody reads them."""

from __future__ import annotations

import asyncio
import json

from forkyard.gateway.headers import value_of
from forkyard.gateway.serving import Receive, Scope, Send, read_body, send_json
from forkyard.values import MIB

BODY_LIMIT = MIB
AT_ONCE = 64
"""Requests of one rollout that are in hand at once, so that they hold 64 MiB at most."""
_SECONDS = 30.0
TOO_MUCH = f"a request is at most {BODY_LIMIT} bytes, in {_SECONDS:g} seconds"


async def read_request(scope: Scope, receive: Receive) -> bytes | None:
    """A request's body; None for one that is too large, too slow, or broken off."""
    announced = value_of(list(scope["headers"]), b"content-length")
    if announced.isdigit() and int(announced) > BODY_LIMIT:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            return await read_body(receive, BODY_LIMIT)
    except TimeoutError:
        return None


async def refuse(send: Send, status: int, message: str) -> None:
    """Answer with an error."""
    await send_json(send, status, json.dumps({"error": message}).encode())
