"""The output of processes as it is kept for who looks on, now or later: the newest of it, within bounds.

One counter numbers the bytes of both streams together, in the order they came.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from forkyard.sandbox.tail import CHUNK
from forkyard.sandbox.values import Stream
from forkyard.values import MIB

KEPT = 1 * MIB  # of one process
KEPT_BY_ALL = 256 * MIB
_PIECE = 100  # what a piece costs beside its bytes
_HEADER = struct.Struct(">BQ")
_NUMBERS: dict[Stream, int] = {"stdout": 1, "stderr": 2}


@dataclass(slots=True)
class _Piece:
    stream: Stream
    start: int
    data: bytearray


class Memory:
    """What all logs together may keep: beyond it, the one that was written to longest ago loses what it has."""

    def __init__(self, limit: int = KEPT_BY_ALL) -> None:
        self._limit = limit
        self._used = 0
        self._logs: dict[Log, None] = {}

    def grown(self, log: Log, by: int) -> None:
        """A log keeps so much more, or less, than before."""
        self._used += by
        if by > 0:
            self._logs.pop(log, None)
            self._logs[log] = None
            while self._used > self._limit and self._logs:
                oldest = next(iter(self._logs))
                del self._logs[oldest]
                oldest.forget(0)

    def drop(self, log: Log) -> None:
        """A log is needed no more."""
        log.forget(0)
        self._logs.pop(log, None)


class Log:
    """The newest output of one process, and the offset at which the next byte will stand."""

    def __init__(self, memory: Memory, limit: int = KEPT) -> None:
        self._memory = memory
        self._limit = limit
        self._pieces: deque[_Piece] = deque()
        self._cost = 0
        self.end = 0

    def add(self, stream: Stream, data: bytes) -> None:
        """Something was written; what is oldest is forgotten for it, if there is too much."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.stream == stream and len(last.data) + len(data) <= CHUNK:
            last.data += data
            cost = len(data)
        else:
            self._pieces.append(_Piece(stream, self.end, bytearray(data)))
            cost = len(data) + _PIECE
        self.end += len(data)
        self._cost += cost
        self._memory.grown(self, cost)
        if self._cost > self._limit:
            self.forget(self._limit)

    def forget(self, limit: int) -> None:
        """Forget the oldest until no more than `limit` is kept."""
        before = self._cost
        while self._cost > limit:
            self._cost -= len(self._pieces.popleft().data) + _PIECE
        self._memory.grown(self, self._cost - before)

    def frame(self, cursor: int) -> tuple[bytes, int] | None:
        """The next bytes after a cursor as a message, and the cursor after them; None when there are none yet."""
        if cursor >= self.end or not self._pieces:
            return None
        at = max(0, bisect_right(self._pieces, cursor, key=lambda piece: piece.start) - 1)
        piece = self._pieces[at]
        start = max(cursor, piece.start)
        data = piece.data[start - piece.start :]
        return _HEADER.pack(_NUMBERS[piece.stream], start) + data, start + len(data)
