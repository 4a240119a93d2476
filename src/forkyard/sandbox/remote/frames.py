"""The messages of the engine's socket. One thing that is said is an object and bytes, in one message or in several.

    message = length of the head (4 bytes) | head (JSON) | piece of the body

The body is JSON of `head["json"]` bytes, and after it plain bytes. Pieces of it come ahead of the last one under heads
with `part`; what is said under several ids at once is mixed. Text is ASCII on the way, so that names that are no
UTF-8 (surrogate escapes) arrive as they were.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct(">I")
PIECE = 256 << 10
_HEAD_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that was said: its head, the object in its body, and the bytes after that."""

    head: Mapping[str, Any]
    value: Any
    data: bytes


def messages(head: Mapping[str, Any], value: Any = None, data: bytes = b"") -> Iterator[bytes]:
    """What is to be sent to say it."""
    text = json.dumps(value).encode("ascii")
    body = memoryview(text + data if len(data) < PIECE else text)
    rest = memoryview(b"" if len(data) < PIECE else data)
    part = {"id": head.get("id"), "part": True}
    while len(body) > PIECE:
        yield _message(part, body[:PIECE])
        body = body[PIECE:]
    while rest:
        yield _message(part, body)
        body, rest = rest[:PIECE], rest[PIECE:]
    yield _message({**head, "json": len(text)}, body)


def _message(head: Mapping[str, Any], piece: memoryview) -> bytes:
    text = json.dumps(head).encode("ascii")
    return b"".join((_LENGTH.pack(len(text)), text, piece))


def head_of(message: bytes | str) -> tuple[dict[str, Any], memoryview]:
    """A message's head, and its piece. ValueError when it is none."""
    if isinstance(message, str) or len(message) < _LENGTH.size:
        raise ValueError("no message of this protocol")
    (length,) = _LENGTH.unpack_from(message)
    if length > _HEAD_LIMIT:
        raise ValueError("a head that is too long")
    head = json.loads(message[_LENGTH.size : _LENGTH.size + length])
    if not isinstance(head, dict):
        raise ValueError("a head that is no object")
    return head, memoryview(message)[_LENGTH.size + length :]


class Body:
    """The pieces of one body as they come, at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: memoryview) -> None:
        """One more. ValueError when it is too much."""
        self._size += len(piece)
        if self._size > self._limit:
            raise ValueError(f"more than {self._limit} bytes")
        self._pieces.append(bytes(piece))

    def said(self, head: Mapping[str, Any]) -> Said:
        """The whole, once the last piece was added. ValueError when it makes no sense."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        length = head.get("json")
        if not isinstance(length, int) or not 0 <= length <= len(whole):
            raise ValueError("no length of the object in a body")
        try:
            return Said(head, json.loads(whole[:length]), whole[length:])
        except RecursionError:
            raise ValueError("an object that is nested too deeply") from None
