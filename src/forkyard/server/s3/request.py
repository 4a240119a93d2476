"""One request of the S3 face, taken apart: the bucket, the key, parameters and headers, nothing of it trusted yet."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.types import Receive, Scope

from forkyard.server.s3.errors import S3Error

PATIENCE = 60.0
"""Seconds that a client may let pass between two pieces of a body, and may be behind in all."""
SLOWEST = 1024
"""Bytes a second below which a client falls behind."""

_LONGEST_KEY = 1024  # bytes, as S3 has it
_MOST_PARAMETERS = 200
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; `path` as it was sent. In it and in headers undecodable bytes are lone surrogates."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]  # by lower-case name; the values of one given several times are joined by ','
    bucket: str
    key: str
    receive: Receive
    patience: float = PATIENCE

    def parameter(self, name: str, default: str = "") -> str:
        """A parameter of the query; the first one if there are several."""
        return next((value for given, value in self.query if given == name), default)

    def has(self, name: str) -> bool:
        """Whether the query has this parameter, with or without a value."""
        return any(given == name for given, _ in self.query)

    def header(self, name: str, default: str = "") -> str:
        """A header's value, without spaces around it."""
        return self.headers.get(name, default).strip(" \t")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A parameter that is a number. Raises S3Error (InvalidArgument) when it is none, or out of bounds."""
        if not self.has(name):
            return default
        text = self.parameter(name)
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise S3Error("InvalidArgument", f"{name} is a number from {least} to {most}", {"ArgumentName": name})
        return int(text)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises S3Error when the client leaves in the middle, goes to sleep, or dawdles."""
        received, waited, more = 0, 0.0, True
        while more:
            since = time.monotonic()
            try:
                async with asyncio.timeout(self.patience + min(0.0, received / SLOWEST - waited)):
                    message = await self.receive()
            except TimeoutError:
                raise S3Error("RequestTimeout", "the body comes too slowly; nothing was written") from None
            waited += time.monotonic() - since
            if message["type"] == "http.disconnect":
                raise S3Error("IncompleteBody", "the connection was closed before the end of the body")
            more = message.get("more_body", False)
            if piece := message.get("body", b""):
                received += len(piece)
                yield piece


def request_of(scope: Scope, receive: Receive) -> Request:
    """The request of an ASGI scope. Raises S3Error when its address cannot be read."""
    path = scope["raw_path"].decode("utf-8", "surrogateescape")
    bucket, _, key = path.removeprefix("/").partition("/")
    headers: dict[str, str] = {}
    for raw_name, raw in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw.decode("utf-8", "surrogateescape")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    query = _query(scope["query_string"].decode("utf-8", "surrogateescape"))
    return Request(scope["method"], path, query, headers, _decoded(bucket), _key(key), receive)


def copied_from(text: str) -> tuple[str, str]:
    """Bucket and key of an `x-amz-copy-source` header. Raises S3Error."""
    path, mark, _ = text.partition("?versionId=")
    bucket, slash, key = path.removeprefix("/").partition("/")
    if mark:
        raise S3Error("NotImplemented", "disks keep no versions; leave ?versionId= out of x-amz-copy-source")
    if not bucket or not slash or not key:
        raise S3Error("InvalidArgument", "x-amz-copy-source is written as /DISK/KEY, percent-encoded")
    return _decoded(bucket), _key(key)


def _key(raw: str) -> str:
    key = _decoded(raw)
    if len(key.encode()) > _LONGEST_KEY:
        raise S3Error("KeyTooLongError", f"a key has at most {_LONGEST_KEY} bytes")
    return key


def _decoded(raw: str) -> str:
    try:
        return unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "the address is no UTF-8; percent-encode the bytes of the UTF-8 text") from None


def _query(raw: str) -> tuple[tuple[str, str], ...]:
    pieces = [piece.partition("=") for piece in raw.split("&") if piece]
    if len(pieces) > _MOST_PARAMETERS:
        raise S3Error("InvalidURI", f"the address has more than {_MOST_PARAMETERS} parameters")
    return tuple((_decoded(name.replace("+", " ")), _decoded(value.replace("+", " "))) for name, _, value in pieces)
