"""Bytes in a file of the host: all of it or a part, there as a whole or still being filled."""

from __future__ import annotations

import asyncio
import io
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.values import MIB


class Arrival:
    """How much of a file is there: told in the event loop by who fills it, waited for in a thread by who reads it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._there = 0
        self._over = ""

    def tell(self, there: int) -> None:
        """So many bytes are there now, and stay as they are."""
        with self._changed:
            self._there = there
            self._changed.notify_all()

    def end(self, why: str) -> None:
        """Nobody is to wait for more."""
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()

    def wait(self, beyond: int) -> int:
        """How much is there, once that is more than `beyond`; OSError when it will not be."""
        with self._changed:
            while self._there <= beyond:
                if self._over:
                    raise OSError(self._over)
                self._changed.wait()
            return self._there


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in a file. Those that still arrive are believed in once `whole` has returned."""

    path: Path
    offset: int
    size: int
    arrival: Arrival | None = None
    filling: asyncio.Task[None] | None = None

    def open(self) -> io.BufferedReader:
        """Read from the beginning, in a thread that may wait."""
        return io.BufferedReader(_Part(self, self.path.open("rb", buffering=0)), MIB)

    async def whole(self) -> None:
        """Wait until all of it is there and verified; raises what went wrong with that."""
        if self.filling is not None:
            await asyncio.shield(self.filling)

    def leave(self) -> None:
        """Have no reader wait for more of it."""
        if self.arrival is not None:
            self.arrival.end("nobody wants it any more")


class _Part(io.RawIOBase):
    """A part of a file, and no byte of what is around it."""

    def __init__(self, blob: Blob, file: io.FileIO) -> None:
        self._file = file  # opened by then, for what is made of this class is closed even when its making fails
        self._file.seek(blob.offset)
        self._size, self._arrival = blob.size, blob.arrival
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self._at == self._size:
            return 0
        there = self._size if self._arrival is None else self._arrival.wait(self._at)
        count = self._file.readinto(memoryview(buffer)[: there - self._at])
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
