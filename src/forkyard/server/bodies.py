"""Bodies of requests, read within bounds of size and patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.requests import ClientDisconnect, Request

from forkyard.server.envelope import ApiError

BODY_LIMIT = 4 << 20
"""Bytes of a JSON body. Bodies of objects have bounds of their own."""
BODY_SECONDS = 30.0
"""How long the whole of a JSON body may take, and how long the next piece of any other."""


class GoneError(Exception):
    """The client has gone before the end of its request."""


async def read_body(request: Request, limit: int = BODY_LIMIT, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body. Raises ApiError 413 over `limit` bytes, 408 after so many seconds, and GoneError."""
    refuse_announced(request.headers, limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise _too_slow(seconds) from None
    except ClientDisconnect:
        raise GoneError from None
    return bytes(body)


async def pieces(request: Request, limit: int, seconds: float = BODY_SECONDS) -> AsyncIterator[bytes]:
    """The body as it comes. Raises as `read_body` does, the time being that until the next piece."""
    refuse_announced(request.headers, limit)
    size = 0
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(seconds):
                piece = await anext(stream, None)
        except TimeoutError:
            raise _too_slow(seconds) from None
        except ClientDisconnect:
            raise GoneError from None
        if piece is None:
            return
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if piece:
            yield piece


def refuse_announced(headers: Mapping[str, str], limit: int) -> None:
    """Raise ApiError 413 when the announced length is beyond the limit: before the client is told to go on."""
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", "too_large")


def _too_slow(seconds: float) -> ApiError:
    return ApiError(408, f"the body did not come within {seconds:g} seconds: send the request again", "too_slow")
