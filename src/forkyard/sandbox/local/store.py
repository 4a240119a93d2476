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
import time
from dataclasses import replace
from pathlib import Path

from forkyard.errors import ConfigError, SandboxError
from forkyard.locks import Owners
from forkyard.sandbox.local.box import Box, Origin, mounts_text
from forkyard.sandbox.local.home import prepare
from forkyard.sandbox.local.idmap import IdMap
from forkyard.sandbox.local.rows import Rows
from forkyard.sandbox.values import ImageConfig, Mount

_VERSION = "1"
_libc = ctypes.CDLL(None, use_errno=True)


def new_disk_id() -> str:
    """Short, so that hundreds of them fit into one page of mount options."""
    return secrets.token_hex(4)


class Store(Rows):
    """One process's handle on a home. Every method is one transaction."""

    def __init__(self, home: Path, ids: IdMap) -> None:
        prepare(home.absolute(), ids)
        super().__init__(home.absolute())
        try:
            self._check_settings(ids)
            self._engines = Owners(self.home / "engines")
        except BaseException:
            self.db.close()
            raise
        self.engine = self._engines.own

    def close(self, *, tidy: bool) -> None:
        """Give up ownership of whatever this process still ran; a sweep is needed when it is not `tidy`."""
        self.db.close()
        self._engines.close(tidy=tidy)

    def _check_settings(self, ids: IdMap) -> None:
        wanted = {"version": _VERSION, "ids": f"{ids.mode} of {ids.owner[0]}"}
        for key, value in wanted.items():
            self.db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (key, value))
            (found,) = self.db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
            if found != value:
                raise ConfigError(
                    f"FORKYARD_HOME {self.home} was made with {key} {found!r}, this process has {value!r}: "
                    "use another FORKYARD_HOME, or remove that one"
                )

    def add_running(
        self,
        origin: Origin,
        box_id: str,
        name: str | None,
        config: ImageConfig,
        *,
        mounts: tuple[Mount, ...] = (),
        snapshot: bool = False,
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
            mounts=mounts,
        )
        with self.transaction():
            if origin.box is not None:
                box = replace(box, stack=(*top, *self.current_stack(origin.box)))
            self.insert(box)
        return box

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
        with self.transaction(durable=True) as doomed:
            box = replace(box, stack=self.current_stack(source))
            old = self.find("image", name)
            if old:
                self.delete(old, doomed)
            self.insert(box)
        return box

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
        """The disk a sandbox wrote becomes the topmost of its stack. If it lasts, its disk has to be settled."""
        assert box.disk is not None
        with self.transaction(durable=box.lasts) as doomed:
            if not self._mark_stopped(box):  # somebody else did, who also found its owner dead
                return self.now(box)
            self.db.execute("DELETE FROM stack WHERE box = ?", (box.id,))
            self.put_stack(box.id, (box.disk, *box.stack))
            self.db.execute(
                "INSERT INTO history VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET own = own + 1, used = excluded.used",
                (box.id, time.time()),
            )
            for work in ("w", "usrw"):  # of no use to a sealed disk, and in it are directories nobody may enter
                doomed.append(f"{box.disk}/{work}")
        return self.now(box)

    def _mark_stopped(self, box: Box) -> bool:
        owner = None if box.lasts else self.engine  # nobody else could ask for another: it goes with us
        changed = self.db.execute(
            "UPDATE boxes SET state = 'stopped', engine = ?, disk = NULL WHERE id = ? AND disk = ?",
            (owner, box.id, box.disk),
        )
        return changed.rowcount == 1

    def set_mounts(self, box: Box, mounts: tuple[Mount, ...]) -> Box:
        """Other mounts for a stopped sandbox."""
        with self.transaction():
            self.db.execute("DELETE FROM mounts WHERE box = ?", (box.id,))
            if mounts:
                self.db.execute("INSERT INTO mounts VALUES (?, ?)", (box.id, mounts_text(mounts)))
        return self.now(box)

    def touch(self, box: Box) -> None:
        """Note that a sandbox was used now."""
        with self.transaction():
            self.db.execute(
                "INSERT INTO history VALUES (?, 0, ?) ON CONFLICT DO UPDATE SET used = excluded.used",
                (box.id, time.time()),
            )

    def add_draft(self, of: Box) -> Box:
        """Claim a new disk to put in the place of some `of` stands on, which are kept until the draft is removed."""
        box = replace(of, id=secrets.token_hex(16), kind="draft", name=None, state="running", engine=self.engine)
        box = replace(box, disk=new_disk_id(), parent=None, created=time.time())
        with self.transaction():
            box = replace(box, stack=self.current_stack(of))
            self.insert(box)
        return box

    def put_in_place(self, box: Box, draft: Box, position: int, count: int) -> Box:
        """Let the disk of a draft stand for `count` disks of a box; nothing is done if the box changed meanwhile.

        If the box lasts, the disk has to be settled. The others are kept until the draft is removed.
        """
        assert draft.disk is not None
        stack = (*draft.stack[:position], draft.disk, *draft.stack[position + count :])
        with self.transaction(durable=box.lasts):
            now = self.one("id = ?", box.id)
            if now and now.stack == draft.stack and now.state == box.state:  # and nobody started it
                self.db.execute("DELETE FROM stack WHERE box = ?", (box.id,))
                self.put_stack(box.id, stack)
                if position < now.own:
                    self.db.execute("UPDATE history SET own = own - ? WHERE box = ?", (count - 1, box.id))
        return self.now(box)

    def set_running(self, box: Box) -> Box:
        """A stopped sandbox gets a fresh disk and this process as its owner; ConfigError if somebody was faster."""
        with self.transaction():
            changed = self.db.execute(
                "UPDATE boxes SET state = 'running', engine = ?, disk = ? WHERE id = ? AND state = 'stopped'",
                (self.engine, new_disk_id(), box.id),
            )
            if changed.rowcount != 1:
                raise ConfigError(f"{box.told} is running in another process, or was removed")
        return self.now(box)

    def never_ran(self, box: Box) -> Box:
        """A sandbox that was set running and did not come up is stopped again, on the disks it had."""
        with self.transaction() as doomed:
            self._mark_stopped(box)
            if box.disk:
                doomed.append(box.disk)
        return self.now(box)

    def remove(self, box: Box) -> None:
        """Forget a row; disks nothing else stands on go to the trash."""
        with self.transaction() as doomed:
            self.delete(box, doomed)

    def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix whose topmost disk nothing but such images stands on; their names."""
        with self.transaction() as doomed:
            kept = {box.id: box for box in self.all("image") if (box.name or "").startswith(prefix)}
            rows = self.db.execute("SELECT box, disk FROM stack").fetchall()
            needed = {disk for box_id, disk in rows if box_id not in kept}
            unneeded = [box for box in kept.values() if box.stack and box.stack[0] not in needed]
            for box in unneeded:
                self.delete(box, doomed)
        return [box.name or "" for box in unneeded]

    def abandoned(self) -> list[Box]:
        """Sandboxes that do not outlive their owner, and disks in the making, whose owner is dead."""
        boxes = [*(box for box in self.all("sandbox") if box.survivor is None), *self.all("draft")]
        return [box for box in boxes if self.is_abandoned(box)]

    def is_abandoned(self, box: Box) -> bool:
        """Whether the process that ran a box is dead."""
        return box.engine is not None and self._engines.is_dead(box.engine)

    def dead_engines(self) -> list[str]:
        """Engines whose process ended without cleaning up."""
        return self._engines.dead()

    def forget_engine(self, engine: str) -> None:
        """Remove a dead engine's lock file."""
        self._engines.forget(engine)

    def orphan_disks(self) -> list[str]:
        """Move disks that no row refers to into the trash; returns their ids."""
        with self.transaction() as doomed:
            known = {disk for (disk,) in self.db.execute("SELECT disk FROM stack UNION SELECT disk FROM boxes")}
            found = [path.name for path in (self.home / "disks").iterdir() if path.name not in known]
            for disk in found:
                doomed.append(disk)
        return found
