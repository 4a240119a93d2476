"""The rows of the catalogue: disks, branches, and who may do what."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forkyard.disk.access import ACCESS_SCHEMA, Access
from forkyard.disk.errors import ConflictError, DiskError
from forkyard.disk.values import Branch, Bucket, DiskInfo, RootAttributes
from forkyard.errors import ConfigError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS disks (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL, backend TEXT, root TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS branches (
    disk TEXT NOT NULL REFERENCES disks (id) ON DELETE CASCADE, name TEXT NOT NULL, created REAL NOT NULL, source TEXT,
    PRIMARY KEY (disk, name)
) STRICT;
"""


class Database:
    """One connection that threads take turns at."""

    def __init__(self, path: Path) -> None:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA foreign_keys = ON")
                self._db.executescript(_SCHEMA + ACCESS_SCHEMA)
            except sqlite3.Error:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as err:
            raise ConfigError(f"the catalogue of disks {path} cannot be used: {err}") from err
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the body or nothing of it. ServiceUnavailable, InsufficientStorage: it cannot be written."""
        with self._turn:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:  # SQLite itself takes back what a full disk stopped, but not always
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as err:
                if err.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise DiskError("InsufficientStorage", "there is no room left for the catalogue of disks") from err
                raise DiskError("ServiceUnavailable", f"the catalogue of disks cannot be written: {err}") from err

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a SELECT gives."""
        with self._turn:
            return self._db.execute(query, values).fetchall()

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            self._db.close()


class Records:
    """Disks and branches by name. Every method is one transaction."""

    def __init__(self, path: Path) -> None:
        self._db = Database(path)
        self.access = Access(self._db)

    @staticmethod
    def now() -> float:
        """Seconds since 1970."""
        return time.time()

    def add_disk(self, new: DiskInfo) -> DiskInfo:
        """`new` itself, or the one of this name that was there before."""
        backend = None if new.backend is None else json.dumps(asdict(new.backend))
        row = (new.id, new.name, new.created, backend, json.dumps(asdict(new.root)))
        with self._db.transaction() as db:
            made = db.execute("INSERT OR IGNORE INTO disks VALUES (?, ?, ?, ?, ?)", row).rowcount
        if made:
            return new
        return self.named(new.name) or self.add_disk(new)  # deleted in between

    def disk(self, disk_id: str) -> DiskInfo:
        """The disk of an id. NoSuchBucket."""
        rows = self._db.rows("SELECT * FROM disks WHERE id = ?", disk_id)
        if not rows:
            raise DiskError("NoSuchBucket", f"there is no disk {disk_id!r}")
        return _disk(rows[0])

    def named(self, name: str) -> DiskInfo | None:
        """The disk of a name."""
        rows = self._db.rows("SELECT * FROM disks WHERE name = ?", name)
        return _disk(rows[0]) if rows else None

    def disks(self, after: str, limit: int) -> tuple[DiskInfo, ...]:
        """Disks in the order of their ids."""
        rows = self._db.rows("SELECT * FROM disks WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return tuple(_disk(row) for row in rows)

    def remove_disk(self, disk_id: str) -> None:
        """Forget a disk with everything said of it. NoSuchBucket."""
        with self._db.transaction() as db:
            removed = db.execute("DELETE FROM disks WHERE id = ?", (disk_id,)).rowcount
        if not removed:
            raise DiskError("NoSuchBucket", f"there is no disk {disk_id!r}")

    def check_new_branch(self, disk_id: str, name: str) -> None:
        """ConflictError: the disk has a branch of this name."""
        if self._db.rows("SELECT 1 FROM branches WHERE disk = ? AND name = ?", disk_id, name):
            raise ConflictError(f"the disk has a branch {name!r} already")

    @contextmanager
    def new_branch(self, branch: Branch) -> Iterator[None]:
        """A row that stands if the body succeeds. ConflictError: taken. NoSuchBucket: the disk is gone."""
        try:
            with self._db.transaction() as db:
                row = (branch.disk_id, branch.name, branch.created, branch.source)
                db.execute("INSERT INTO branches VALUES (?, ?, ?, ?)", row)
                yield
        except sqlite3.IntegrityError:
            self.disk(branch.disk_id)
            raise ConflictError(f"the disk has a branch {branch.name!r} already") from None

    def branch(self, disk_id: str, name: str) -> Branch:
        """One branch. NoSuchBucket."""
        for branch in self.branches(disk_id):
            if branch.name == name:
                return branch
        raise DiskError("NoSuchBucket", f"the disk {disk_id!r} has no branch {name!r}")

    def branches(self, disk_id: str) -> tuple[Branch, ...]:
        """Oldest first."""
        rows = self._db.rows("SELECT * FROM branches WHERE disk = ? ORDER BY created, name", disk_id)
        return tuple(Branch(*row) for row in rows)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _disk(row: tuple[Any, ...]) -> DiskInfo:
    disk_id, name, created, backend, root = row
    kept = None if backend is None else Bucket(**json.loads(backend))
    return DiskInfo(disk_id, name, created, kept, RootAttributes(**json.loads(root)))
