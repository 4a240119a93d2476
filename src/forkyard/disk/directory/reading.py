"""Reading an object: one open file, of which no more is read than it had at the beginning."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from forkyard.disk.directory.place import Place
from forkyard.disk.values import ObjectInfo, Range
from forkyard.disk.workers import Workers

_PIECE = 1 << 18


class FileReading:
    """An object of a directory while it is read. The first piece is there already, and often all of it."""

    def __init__(self, fd: int, info: ObjectInfo, start: int, stop: int, workers: Workers) -> None:
        self.info = info
        self.start = start
        self.stop = stop
        self._fd = fd
        self._at = start
        self._workers = workers
        self._first = self._piece()
        if self._at >= stop:
            self._close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            piece, self._first = self._first, b""
            while piece:
                yield piece
                piece = await self._workers.run(self._piece) if self._at < self.stop else b""
        finally:
            self._close()

    async def read(self) -> bytes:
        """All of it at once."""
        return b"".join([piece async for piece in self])

    async def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._close()

    def __del__(self) -> None:
        self._close()

    def _piece(self) -> bytes:
        """The next bytes; none when a command has cut the file off."""
        if self._fd < 0:
            return b""
        piece = os.pread(self._fd, min(_PIECE, self.stop - self._at), self._at)
        self._at += len(piece)
        return piece

    def _close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


def open_reading(place: Place, key: str, range: Range | None, workers: Workers) -> FileReading:
    """Start reading. NoSuchKey, InvalidRange."""
    found = place.needed(key)
    try:
        start, stop = (0, found.info.size) if range is None else range.within(found.info.size)
        return FileReading(found.fd, found.info, start, stop, workers)
    except BaseException:
        if found.fd >= 0:
            os.close(found.fd)
        raise
