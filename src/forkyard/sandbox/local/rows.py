"""The rows of a home: one SQLite database that says which sandboxes and images there are, and what each stands on."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.local.box import SCHEMA, SELECT, Box, as_row, from_row, mounts_text


class Rows:
    """One process's handle on the database, for the store and for those who keep more in it. `home` is absolute."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.db = sqlite3.connect(home / "forkyard.db", timeout=30, isolation_level=None)
        try:
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute("PRAGMA foreign_keys = ON")
            self.db.executescript(SCHEMA)
        except BaseException:
            self.db.close()
            raise

    @contextmanager
    def transaction(self, durable: bool = False) -> Iterator[list[str]]:
        """All of the body or nothing of it; `durable` outlives a power cut.

        Disks, or parts of them, whose paths the body puts into the list go to the trash after it, and are deleted in
        the background. Killed in between, a disk is one that no row refers to. The other way round a row would refer
        to none.
        """
        doomed: list[str] = []
        try:
            if durable:
                self.db.execute("PRAGMA synchronous = FULL")
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield doomed
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise
        except sqlite3.Error as err:
            raise SandboxError(f"FORKYARD_HOME {self.home} cannot be written: {err}") from err
        finally:
            if durable:
                with suppress(sqlite3.Error):  # the next one that must be durable says so again
                    self.db.execute("PRAGMA synchronous = NORMAL")
        for path in doomed:
            with suppress(FileNotFoundError):  # it never came to a mount
                (self.home / "disks" / path).rename(self.home / "trash" / secrets.token_hex(8))

    def insert(self, box: Box) -> None:
        """A new row; ConfigError when its name is taken."""
        try:
            self.db.execute("INSERT INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", as_row(box))
        except sqlite3.IntegrityError:
            raise ConfigError(f"there is a {box.kind} named {box.name!r} already") from None
        self.put_stack(box.id, box.stack)
        if box.mounts and box.kind == "sandbox":  # a disk that is kept or made of one has none
            self.db.execute("INSERT INTO mounts VALUES (?, ?)", (box.id, mounts_text(box.mounts)))

    def put_stack(self, box: str, disks: Sequence[str]) -> None:
        """What a box stands on, which stands on nothing yet."""
        rows = [(box, position, disk) for position, disk in enumerate(disks)]
        self.db.executemany("INSERT INTO stack VALUES (?, ?, ?)", rows)

    def current_stack(self, box: Box) -> tuple[str, ...]:
        """The disks a box stands on now: somebody may have put one in the place of many."""
        stack = self.stack(box.id)
        if not stack and not self.db.execute("SELECT 1 FROM boxes WHERE id = ?", (box.id,)).fetchone():
            raise ConfigError(f"{box.told} was removed meanwhile")
        return stack

    def now(self, box: Box) -> Box:
        """The same sandbox or image as it is now; ConfigError when it was removed."""
        found = self.one("id = ?", box.id)
        if found is None:
            raise ConfigError(f"{box.told} was removed meanwhile")
        return found

    def find(self, kind: str, name: str) -> Box | None:
        """A sandbox by name or id, or an image by name."""
        return self.one("kind = ? AND (name = ? OR (kind = 'sandbox' AND id = ?))", kind, name, name)

    def all(self, kind: str) -> list[Box]:
        """Every sandbox, or every image, oldest first."""
        ids = self.db.execute("SELECT id FROM boxes WHERE kind = ? ORDER BY created, id", (kind,)).fetchall()
        found = [self.one("id = ?", box_id) for (box_id,) in ids]
        return [box for box in found if box is not None]

    def one(self, where: str, *values: str) -> Box | None:
        """The box of which a condition holds."""
        row = self.db.execute(f"{SELECT} WHERE {where}", values).fetchone()
        return None if row is None else from_row(row, self.stack(row[0]))

    def stack(self, box_id: str) -> tuple[str, ...]:
        """The sealed disks of a box, topmost first."""
        rows = self.db.execute("SELECT disk FROM stack WHERE box = ? ORDER BY position", (box_id,))
        return tuple(disk for (disk,) in rows)

    def delete(self, box: Box, doomed: list[str]) -> None:
        """Forget a row within a transaction; disks that nothing else stands on are doomed."""
        disks = {disk for (disk,) in self.db.execute("SELECT disk FROM boxes WHERE id = ?", (box.id,)) if disk}
        disks.update(self.stack(box.id))
        self.db.execute("DELETE FROM boxes WHERE id = ?", (box.id,))
        self._release(disks, doomed)

    def _release(self, disks: Iterable[str], doomed: list[str]) -> None:
        """Trash those of the disks that nothing refers to any more."""
        for disk in sorted(disks):
            used = self.db.execute(
                "SELECT 1 FROM stack WHERE disk = ? UNION ALL SELECT 1 FROM boxes WHERE disk = ? LIMIT 1", (disk, disk)
            ).fetchone()
            if used is None:
                doomed.append(disk)
