"""Bodies of requests, read within bounds of size and patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator
from starlette.requests import ClientDisconnect, Request

from forkyard.server.envelope import ApiError
from forkyard.values import nearest

BODY_LIMIT = 4 << 20
"""Bytes of a JSON body. Bodies of objects have bounds of their own."""
BODY_SECONDS = 30.0
"""How long the whole of a JSON body may take, and how long the next piece of any other."""
_LIKENESS = 0.75  # what is less like a key of ours may well be one of a newer client


class Sent(BaseModel):
    """What is sent: null is as if the key were not there.

    Keys of newer clients are passed over, and `ignored` has them; one that looks like a key of ours is refused.
    """

    model_config = ConfigDict(extra="ignore")
    _ignored: tuple[str, ...] = PrivateAttr(())

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys that were sent and mean nothing here."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _without_nulls(cls, given: Any, made: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict):
            return made(given)
        model = made({key: value for key, value in given.items() if value is not None})
        model._ignored = cls._unknown(given)
        return model

    @classmethod
    def _unknown(cls, given: dict[str, Any]) -> tuple[str, ...]:
        names = cls.__pydantic_fields__
        if given.keys() <= names.keys():
            return ()
        known = {field.alias or name for name, field in names.items()}
        unknown = tuple(str(key) for key in given if key not in known and key not in names)
        for key in unknown:
            if near := nearest(key, known, _LIKENESS):
                raise ValueError(f"there is no {key[:60]!r}: did you mean {near!r}?")
        return unknown


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
