"""What the local provider keeps on disk: `FORKYARD_HOME`, safe for several processes at once.

    forkyard.db        sandboxes and images, and the stack of disks each stands on (SQLite, WAL)
    engines/<id>       a file locked by the process that owns the running sandboxes of that engine
    disks/<id>/        u and w: upper and work directory of an overlay; usr and usrw where /usr is the host's
    trash/             what is being deleted
    root/ usr/ aside/  empty directories: mount points inside the engine's own namespace
    empty/             the lowest layer of what has no other

A disk is written by one live sandbox; stopping seals it, and from then on it is a layer, never written again. A
sandbox or image is a stack of sealed disks, topmost first. A disk no row refers to is deleted; one that is being made
to take the place of others has a row of its own, a draft.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.local.box import SCHEMA, SELECT, Box, Origin, as_row, from_row
from forkyard.sandbox.local.home import Engines, prepare
from forkyard.sandbox.local.idmap import IdMap
from forkyard.sandbox.values import ImageConfig

_VERSION = "1"
_libc = ctypes.CDLL(None, use_errno=True)


def new_disk_id() -> str:
    """Short, so that hundreds of them fit into one page of mount options."""
    return secrets.token_hex(4)


class Store:
    """One process's handle on a home. Every method is one transaction."""

    def __init__(self, home: Path, ids: IdMap) -> None:
        self.home = home.absolute()
        prepare(self.home, ids)
        self._db = sqlite3.connect(self.home / "forkyard.db", timeout=30, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.executescript(SCHEMA)
        self._check_settings(ids)
        self._engines = Engines(self.home)
        self.engine = self._engines.own

    def close(self) -> None:
        """Give up ownership of whatever this process still ran."""
        self._db.close()
        self._engines.close()

    def _check_settings(self, ids: IdMap) -> None:
        wanted = {"version": _VERSION, "ids": f"{ids.mode} of {ids.owner[0]}"}
        for key, value in wanted.items():
            self._db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (key, value))
            (found,) = self._db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
            if found != value:
                raise ConfigError(
                    f"FORKYARD_HOME {self.home} was made with {key} {found!r}, this process has {value!r}: "
                    "use another FORKYARD_HOME, or remove that one"
                )

    @contextmanager
    def _transaction(self, durable: bool = False) -> Iterator[list[str]]:
        """All of the body or nothing of it; `durable` outlives a power cut.

        Disks, or parts of them, whose paths the body puts into the list go to the trash after it, and are deleted in
        the background. Killed in between, a disk is one that no row refers to. The other way round a row would refer
        to none.
        """
        doomed: list[str] = []
        try:
            if durable:
                self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield doomed
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as err:
            raise SandboxError(f"FORKYARD_HOME {self.home} cannot be written: {err}") from err
        finally:
            if durable:
                with suppress(sqlite3.Error):  # the next one that must be durable says so again
                    self._db.execute("PRAGMA synchronous = NORMAL")
        for path in doomed:
            with suppress(FileNotFoundError):  # it never came to a mount
                (self.home / "disks" / path).rename(self.home / "trash" / secrets.token_hex(8))

    def add_running(
        self, origin: Origin, box_id: str, name: str | None, config: ImageConfig, *, snapshot: bool = False
    ) -> Box:
        """A new running sandbox on the disks of an origin, whose row must still exist. ConfigError: the name is taken.

        With `snapshot` there is one more disk over them, for somebody to make.
        """
        top = (new_disk_id(),) if snapshot else ()
        box = Box(
            id=box_id,
            kind="sandbox",
            name=name,
            state="running",
            image=origin.image,
            parent=origin.parent,
            created=time.time(),
            engine=self.engine,
            disk=new_disk_id(),
            host=origin.host,
            config=config,
            stack=(*top, *origin.stack),
        )
        with self._transaction():
            if origin.box is not None:
                box = replace(box, stack=(*top, *self._current(origin.box)))
            self._insert(box)
        return box

    def _current(self, box: Box) -> tuple[str, ...]:
        """The disks a box stands on now: somebody may have put one in the place of many."""
        stack = self._stack(box.id)
        if not stack and not self._db.execute("SELECT 1 FROM boxes WHERE id = ?", (box.id,)).fetchone():
            raise ConfigError(f"{box.told} was removed meanwhile")
        return stack

    def put_image(self, name: str, source: Box, config: ImageConfig) -> Box:
        """An image on the disks of a stopped sandbox, which are settled; one of the same name is replaced."""
        box = Box(
            id=secrets.token_hex(16),
            kind="image",
            name=name,
            state="stopped",
            image=source.image,
            parent=None,
            created=time.time(),
            engine=None,
            disk=None,
            host=source.host,
            config=config,
            stack=source.stack,
        )
        with self._transaction(durable=True) as doomed:
            box = replace(box, stack=self._current(source))
            old = self.find("image", name)
            if old:
                self._delete(old, doomed)
            self._insert(box)
        return box

    def _insert(self, box: Box) -> None:
        try:
            self._db.execute("INSERT INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", as_row(box))
        except sqlite3.IntegrityError:
            raise ConfigError(f"there is a {box.kind} named {box.name!r} already") from None
        self._put_stack(box.id, box.stack)

    def _put_stack(self, box: str, disks: Sequence[str]) -> None:
        rows = [(box, position, disk) for position, disk in enumerate(disks)]
        self._db.executemany("INSERT INTO stack VALUES (?, ?, ?)", rows)

    def settle(self) -> None:
        """Have everything written to disks reach the medium: they are written without care for a power cut.

        To be done before a row says that something with a name stands on them. It may take seconds, in any thread.
        """
        fd = os.open(self.home / "disks", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise SandboxError(f"FORKYARD_HOME {self.home} cannot be written: {os.strerror(number)}")
        finally:
            os.close(fd)

    def set_stopped(self, box: Box) -> Box:
        """The disk a sandbox wrote becomes the topmost of its stack. If it has a name, its disk has to be settled."""
        assert box.disk is not None
        with self._transaction(durable=box.name is not None) as doomed:
            self._mark_stopped(box)
            self._db.execute("DELETE FROM stack WHERE box = ?", (box.id,))
            self._put_stack(box.id, (box.disk, *box.stack))
            self._db.execute(
                "INSERT INTO history VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET own = own + 1, used = excluded.used",
                (box.id, time.time()),
            )
            for work in ("w", "usrw"):  # of no use to a sealed disk, and in it are directories nobody may enter
                doomed.append(f"{box.disk}/{work}")
        return self.now(box)

    def _mark_stopped(self, box: Box) -> None:
        owner = None if box.name else self.engine  # nobody else could ask for a nameless one: it goes with us
        self._db.execute("UPDATE boxes SET state = 'stopped', engine = ?, disk = NULL WHERE id = ?", (owner, box.id))

    def touch(self, box: Box) -> None:
        """Note that a sandbox was used now."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO history VALUES (?, 0, ?) ON CONFLICT DO UPDATE SET used = excluded.used",
                (box.id, time.time()),
            )

    def remove_unused(self, since: float) -> list[Box]:
        """Forget the stopped sandboxes with a name that were last used before `since` and have no running fork."""
        with self._transaction() as doomed:
            parents = {parent for (parent,) in self._db.execute("SELECT parent FROM boxes WHERE state = 'running'")}
            found = [
                box
                for box in self.all("sandbox")
                if box.state == "stopped" and box.name and box.used < since and box.id not in parents
            ]
            for box in found:
                self._delete(box, doomed)
        return found

    def add_draft(self, of: Box) -> Box:
        """Claim a new disk to put in the place of some `of` stands on, which are kept until the draft is removed."""
        box = replace(of, id=secrets.token_hex(16), kind="draft", name=None, state="running", engine=self.engine)
        box = replace(box, disk=new_disk_id(), parent=None, created=time.time())
        with self._transaction():
            box = replace(box, stack=self._current(of))
            self._insert(box)
        return box

    def put_in_place(self, box: Box, draft: Box, position: int, count: int) -> Box:
        """Let the disk of a draft stand for `count` disks of a box; nothing is done if the box changed meanwhile.

        If the box has a name, the disk has to be settled. The others are kept until the draft is removed.
        """
        assert draft.disk is not None
        stack = (*draft.stack[:position], draft.disk, *draft.stack[position + count :])
        with self._transaction(durable=box.name is not None):
            now = self._one("id = ?", box.id)
            if now and now.stack == draft.stack and now.state == box.state:  # and nobody started it
                self._db.execute("DELETE FROM stack WHERE box = ?", (box.id,))
                self._put_stack(box.id, stack)
                if position < now.own:
                    self._db.execute("UPDATE history SET own = own - ? WHERE box = ?", (count - 1, box.id))
        return self.now(box)

    def set_running(self, box: Box) -> Box:
        """A stopped sandbox gets a fresh disk and this process as its owner; ConfigError if somebody was faster."""
        with self._transaction():
            changed = self._db.execute(
                "UPDATE boxes SET state = 'running', engine = ?, disk = ? WHERE id = ? AND state = 'stopped'",
                (self.engine, new_disk_id(), box.id),
            )
            if changed.rowcount != 1:
                raise ConfigError(f"{box.told} is running in another process, or was removed")
        return self.now(box)

    def never_ran(self, box: Box) -> Box:
        """A sandbox that was set running and did not come up is stopped again, on the disks it had."""
        with self._transaction() as doomed:
            self._mark_stopped(box)
            if box.disk:
                doomed.append(box.disk)
        return self.now(box)

    def now(self, box: Box) -> Box:
        """The same sandbox or image as it is now; ConfigError when it was removed."""
        found = self._one("id = ?", box.id)
        if found is None:
            raise ConfigError(f"{box.told} was removed meanwhile")
        return found

    def find(self, kind: str, name: str) -> Box | None:
        """A sandbox by name or id, or an image by name."""
        return self._one("kind = ? AND (name = ? OR (kind = 'sandbox' AND id = ?))", kind, name, name)

    def all(self, kind: str) -> list[Box]:
        """Every sandbox, or every image, oldest first."""
        ids = self._db.execute("SELECT id FROM boxes WHERE kind = ? ORDER BY created, id", (kind,)).fetchall()
        found = [self._one("id = ?", box_id) for (box_id,) in ids]
        return [box for box in found if box is not None]

    def _one(self, where: str, *values: str) -> Box | None:
        row = self._db.execute(f"{SELECT} WHERE {where}", values).fetchone()
        return None if row is None else from_row(row, self._stack(row[0]))

    def _stack(self, box_id: str) -> tuple[str, ...]:
        rows = self._db.execute("SELECT disk FROM stack WHERE box = ? ORDER BY position", (box_id,))
        return tuple(disk for (disk,) in rows)

    def remove(self, box: Box) -> None:
        """Forget a row; disks nothing else stands on go to the trash."""
        with self._transaction() as doomed:
            self._delete(box, doomed)

    def _delete(self, box: Box, doomed: list[str]) -> None:
        disks = {disk for (disk,) in self._db.execute("SELECT disk FROM boxes WHERE id = ?", (box.id,)) if disk}
        disks.update(self._stack(box.id))
        self._db.execute("DELETE FROM boxes WHERE id = ?", (box.id,))
        self._release(disks, doomed)

    def _release(self, disks: Iterable[str], doomed: list[str]) -> None:
        """Trash those of the disks that nothing refers to any more."""
        for disk in sorted(disks):
            used = self._db.execute(
                "SELECT 1 FROM stack WHERE disk = ? UNION ALL SELECT 1 FROM boxes WHERE disk = ? LIMIT 1", (disk, disk)
            ).fetchone()
            if used is None:
                doomed.append(disk)

    def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix whose topmost disk nothing but such images stands on; their names."""
        with self._transaction() as doomed:
            kept = {box.id: box for box in self.all("image") if (box.name or "").startswith(prefix)}
            rows = self._db.execute("SELECT box, disk FROM stack").fetchall()
            needed = {disk for box_id, disk in rows if box_id not in kept}
            unneeded = [box for box in kept.values() if box.stack and box.stack[0] not in needed]
            for box in unneeded:
                self._delete(box, doomed)
        return [box.name or "" for box in unneeded]

    def abandoned(self) -> list[Box]:
        """Sandboxes, and disks in the making, whose owner is dead."""
        boxes = [*self.all("sandbox"), *self.all("draft")]
        return [box for box in boxes if box.engine and self._engines.is_dead(box.engine)]

    def dead_engines(self) -> list[str]:
        """Engines whose process ended without cleaning up."""
        return self._engines.dead()

    def forget_engine(self, engine: str) -> None:
        """Remove a dead engine's lock file."""
        self._engines.forget(engine)

    def orphan_disks(self) -> list[str]:
        """Move disks that no row refers to into the trash; returns their ids."""
        with self._transaction() as doomed:
            known = {disk for (disk,) in self._db.execute("SELECT disk FROM stack UNION SELECT disk FROM boxes")}
            found = [path.name for path in (self.home / "disks").iterdir() if path.name not in known]
            for disk in found:
                doomed.append(disk)
        return found
