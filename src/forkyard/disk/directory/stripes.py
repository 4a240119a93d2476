"""Turns at objects, for all processes that serve a disk, and notes of appends that may have been cut off.

A key belongs to one of 256 files. Whoever changes an object holds that file's lock; whoever looks at one waits for the
lock to be free. Before an append writes, it notes in the file where the object ended, and strikes the note out after:
a note without a holder is that of a killed process, and whoever takes the lock next puts the object back first. The
kernel ends a write of many pages halfway when its process is killed, so the write alone would not be whole.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_HEAD = struct.Struct("<4sQQQH")
_MAGIC = b"FYA1"
_LONGEST = _HEAD.size + 1024


@dataclass(frozen=True)
class Note:
    """An append under way: to which file, from where to where."""

    key: bytes
    inode: int
    start: int
    stop: int


class Stripe:
    """One lock, held."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def note(self, note: Note) -> None:
        """What is about to be written."""
        head = _HEAD.pack(_MAGIC, note.inode, note.start, note.stop, len(note.key))
        os.pwrite(self._fd, head + note.key, 0)

    def strike(self) -> None:
        """It was written whole, or taken back."""
        os.pwrite(self._fd, bytes(len(_MAGIC)), 0)

    def read(self) -> Note | None:
        """What somebody left."""
        raw = os.pread(self._fd, _LONGEST, 0)
        if len(raw) < _HEAD.size or not raw.startswith(_MAGIC):
            return None
        _, inode, start, stop, length = _HEAD.unpack_from(raw)
        return Note(raw[_HEAD.size : _HEAD.size + length], inode, start, stop)


class Stripes:
    """The locks of one disk. `mend` puts right what a note is about; it is called with the lock held."""

    def __init__(self, directory: Path, mend: Callable[[Note], None]) -> None:
        self._directory = str(directory)
        self._mend = mend

    @contextmanager
    def held(self, key: str) -> Iterator[Stripe]:
        """Nobody else changes this object meanwhile, or looks at it."""
        fd = os.open(self._path(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            stripe = Stripe(fd)
            left = stripe.read()
            if left is not None:
                self._mend(left)
                stripe.strike()
            yield stripe
        finally:
            os.close(fd)

    @contextmanager
    def calm(self, key: str) -> Iterator[None]:
        """Nobody changes this object meanwhile, commands in sandboxes aside.

        An object may be opened before, since one that is replaced or removed then stays what it was.
        """
        fd = os.open(self._path(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if Stripe(fd).read() is None:
                yield
                return
        finally:
            os.close(fd)
        with self.held(key):
            yield

    def _path(self, key: str) -> str:
        return f"{self._directory}/{zlib.crc32(os.fsencode(key)) & 0xFF:02x}"
