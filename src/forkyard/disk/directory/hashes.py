"""The MD5 of files, kept for as long as they are the same, so that an ETag seldom costs reading an object.

A file is known by its number, length and the time of its last change, which no program can set. It is a cache: what is
lost of it is worked out again. Linux before 6.13 tells two changes within 4 ms apart only when the length differs.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forkyard.disk.parts import new_md5
from forkyard.disk.values import PUT_LIMIT

if TYPE_CHECKING:
    from hashlib import _Hash

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
_BLOCK = 1 << 20
_HOLES_FROM = 64 << 20
_KEPT = 20_000
_WRITTEN_AT = 256
_SCHEMA = """
CREATE TABLE IF NOT EXISTS hashes (
    device INTEGER NOT NULL, inode INTEGER NOT NULL, size INTEGER NOT NULL, changed INTEGER NOT NULL, md5 TEXT NOT NULL,
    PRIMARY KEY (device, inode)
) STRICT;
"""
_File = tuple[int, int]
_State = tuple[int, int]


def hashed(fd: int, size: int) -> tuple[_Hash, int]:
    """MD5 of the first `size` bytes, and how many there were."""
    md5, done = new_md5(), 0
    while done < size:
        block = os.pread(fd, min(_BLOCK, size - done), done)
        if not block:
            break
        md5.update(block)
        done += len(block)
    return md5, done


@dataclass(frozen=True)
class _Known:
    state: _State
    md5: str
    running: _Hash | None
    """What more bytes can be added to; None after a restart."""


class Hashes:
    """What is known of one disk's files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._known: OrderedDict[_File, _Known] = OrderedDict()
        self._unwritten: dict[_File, _Known] = {}
        self._db: sqlite3.Connection | None = None

    def find(self, found: os.stat_result) -> str | None:
        """The MD5 of a file in this state, if it is known."""
        with self._turn:
            known = self._find(found)
        return None if known is None else known.md5

    def keep(self, found: os.stat_result, md5: _Hash) -> None:
        """Note the MD5 of a file in this state."""
        with self._turn:
            known = _Known((found.st_size, found.st_ctime_ns), md5.hexdigest(), md5)
            self._remember((found.st_dev, found.st_ino), known)
            self._unwritten[(found.st_dev, found.st_ino)] = known
            if len(self._unwritten) >= _WRITTEN_AT:
                self._write()

    def of(self, fd: int, found: os.stat_result) -> tuple[str, int]:
        """MD5 of a file as it was found, and its length; shorter when it is being cut off meanwhile."""
        md5 = self.find(found)
        if md5 is None and too_long(found):
            md5 = mark_of(found)
        if md5 is not None:
            return md5, found.st_size
        running, size = hashed(fd, found.st_size)
        if _same(found, os.fstat(fd)) and size == found.st_size:
            self.keep(found, running)
        return running.hexdigest(), size

    def running(self, fd: int, found: os.stat_result) -> _Hash | None:
        """An MD5 of the whole file that more bytes can be added to. Only the first one of a file reads it.

        None: it is not known, and the file is too long to read.
        """
        with self._turn:
            known = self._find(found)
        if known is not None and known.running is not None:
            return known.running.copy()
        return None if too_long(found) else hashed(fd, found.st_size)[0]

    def close(self) -> None:
        """Write down what is known."""
        with self._turn:
            self._write()
            if self._db is not None:
                self._db.close()
                self._db = None

    def _find(self, found: os.stat_result) -> _Known | None:
        file, state = (found.st_dev, found.st_ino), (found.st_size, found.st_ctime_ns)
        known = self._known.get(file) or self._read(file)
        if known is None or known.state != state:
            return None
        self._known.move_to_end(file)
        return known

    def _remember(self, file: _File, known: _Known) -> None:
        self._known[file] = known
        self._known.move_to_end(file)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _read(self, file: _File) -> _Known | None:
        try:
            query = "SELECT size, changed, md5 FROM hashes WHERE device = ? AND inode = ?"
            row = self._opened().execute(query, file).fetchone()
        except sqlite3.Error:  # nothing is known then
            return None
        if row is None:
            return None
        size, changed, md5 = row
        known = _Known((size, changed), md5, None)
        self._remember(file, known)
        return known

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        rows = [(*file, *known.state, known.md5) for file, known in unwritten.items()]
        try:
            db = self._opened()
            with db:
                db.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error:  # a full disk, say: they are worked out again after the next start
            return

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(self._path, timeout=1, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.executescript(_SCHEMA)
        return self._db


def too_long(found: os.stat_result) -> bool:
    """Whether a file is too long to be read for its MD5, or mostly holes: a guest makes terabytes of those at once."""
    holes = found.st_size > _HOLES_FROM and found.st_blocks * 512 < found.st_size // 2
    return found.st_size > PUT_LIMIT or holes


def mark_of(found: os.stat_result) -> str:
    """An ETag of the form of those that are no MD5, another one for every state of a file."""
    state = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_ctime_ns}"
    return f"{new_md5(state.encode()).hexdigest()}-1"


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_ino, one.st_size, one.st_ctime_ns) == (other.st_ino, other.st_size, other.st_ctime_ns)
