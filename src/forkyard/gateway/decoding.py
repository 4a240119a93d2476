"""Bodies as they travel, made readable: compressed ones, bounded, and server-sent events."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from forkyard.values import MIB

REQUEST_LIMIT = 64 * MIB
REPLY_LIMIT = 64 * MIB
EVENT_LIMIT = 16 * MIB
VALUES_LIMIT = 4_000_000
"""A list of lists takes thirty times its size once it is read."""
DEEPEST = 100
"""Whoever reads or writes what is nested deeper, level by level, runs out of stack: a record could not be written."""
READABLE = ("gzip", "deflate")
"""The compressions that are read here, and so the ones providers are asked for; `identity` besides."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class TooMuchError(ValueError):
    """A body is larger than it may be."""


class Inflater:
    """Reads one body that is compressed as `encoding` says. Raises ValueError for encodings that are not read here."""

    def __init__(self, encoding: str, limit: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", *READABLE):
            raise ValueError(f"it is compressed as {name[:40]!r}, which is not read here")
        # 47: gzip and zlib are told apart by their heads.
        self._stream = zlib.decompressobj(47) if name in READABLE else None
        self._left = limit
        self._limit = limit

    @property
    def plain(self) -> bool:
        """Whether bytes stay as they are."""
        return self._stream is None

    def feed(self, data: bytes) -> bytes:
        """What the next bytes stand for. Raises ValueError when they cannot be read, TooMuchError past the limit."""
        if self._stream is not None and data:
            try:
                data = self._stream.decompress(data, self._left + 1)
            except zlib.error as err:
                raise ValueError(f"it is not compressed as it says ({err})") from None
        self._left -= len(data)
        if self._left < 0:
            raise TooMuchError(f"it is larger than {self._limit // MIB} MiB")
        return data


def read_json(data: bytes) -> Any:
    """The JSON in a body. Raises ValueError, also for too many values to hold, or too deeply nested to write down."""
    if len(data) > MIB and sum(map(data.count, (b"[", b"{", b","))) > VALUES_LIMIT:
        raise ValueError(f"it holds more than {VALUES_LIMIT} values")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON: {data[:200].decode('utf-8', 'replace')!r}") from None
    if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(data):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return body


def _is_deep(data: bytes) -> bool:
    """Whether JSON is nested deeper than it may be: its innermost brackets are taken away, level by level."""
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


class Events:
    """Cuts a stream of server-sent events apart: for each event its bytes and the data in it (b"" for none)."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the line that has not ended yet
        self._lines: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The events that end in the next bytes. Raises TooMuchError for one that is larger than it may be."""
        self._size += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line = b"".join([*self._rest, piece])
            self._rest = []
            self._lines.append(line)
            if line in (b"", b"\r"):
                yield self._event()
        if rest:
            self._rest.append(rest)
        if self._size > EVENT_LIMIT and sum(map(len, self._lines)) + sum(map(len, self._rest)) > EVENT_LIMIT:
            raise TooMuchError(f"an event is larger than {EVENT_LIMIT // MIB} MiB")

    def end(self) -> bytes:
        """What is left when the stream is over: an event that never ended."""
        left = b"\n".join([*self._lines, b"".join(self._rest)])
        self._lines, self._rest = [], []
        return left

    def _event(self) -> tuple[bytes, bytes]:
        lines, self._lines, self._size = self._lines, [], 0
        data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        return b"\n".join(lines) + b"\n", b"\n".join(data)
