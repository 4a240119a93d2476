"""Kept disks in the store: rows of the kind "kept", which stand on the disks of a sandbox that is gone.

Rows are made without waiting for the medium, because every rollout makes one. Until the disks are settled, when the
store is let go in good order, they are good for as long as the machine is not restarted: `boot` says which start of it
made them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.sandbox.keeping import KeepPolicy, KeptDisk
from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    box TEXT PRIMARY KEY REFERENCES boxes (id) ON DELETE CASCADE,
    boot TEXT,                    -- the start of the machine, until the disks are settled
    own INTEGER NOT NULL,         -- how many disks of the stack the sandbox wrote itself
    size INTEGER                  -- bytes of these, once measured
);
"""


@dataclass(frozen=True, slots=True)
class Measurable:
    """A kept box whose size is not known yet, and the disks that count."""

    box: str
    disks: tuple[str, ...]


class KeptDisks:
    """The kept disks of a store. Every method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._db = store.db
        self._db.executescript(SCHEMA)
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._unsettled: list[str] = []

    def put(self, name: str, source: Box, without_env: Collection[str]) -> None:
        """Keep the disks of a stopped sandbox. ConfigError: the name is taken."""
        env = {key: value for key, value in source.config.env.items() if key not in without_env}
        box = replace(
            source,
            id=secrets.token_hex(16),
            kind="kept",
            name=name,
            parent=None,
            created=time.time(),
            engine=None,
            config=replace(source.config, env=env),
        )
        with self._store.transaction():
            box = replace(box, stack=self._store.current_stack(source))
            self._store.insert(box)
            self._db.execute("INSERT INTO kept VALUES (?, ?, ?, NULL)", (box.id, self._boot, max(source.own, 1)))
        self._unsettled.append(box.id)

    def find(self, name: str) -> Box | None:
        """A kept disk, unless it may be damaged."""
        if all(disk.name != name for disk in self.all(name)):
            return None
        return self._store.find("kept", name)

    def all(self, name: str | None = None) -> list[KeptDisk]:
        """Those that can be had, oldest first, or the one of a name."""
        rows = self._db.execute(
            "SELECT name, created, size FROM boxes JOIN kept ON box = id"
            " WHERE coalesce(boot, :boot) = :boot AND coalesce(:name, name) = name ORDER BY created, id",
            {"boot": self._boot, "name": name},
        )
        return [KeptDisk(*row) for row in rows]

    def unmeasured(self) -> list[Measurable]:
        """Those whose size is to be found out."""
        rows = self._db.execute("SELECT box, own FROM kept WHERE size IS NULL").fetchall()
        return [Measurable(box, self._store.stack(box)[:own]) for box, own in rows]

    def set_sizes(self, sizes: dict[str, int]) -> None:
        """Note what was measured."""
        with self._store.transaction():
            self._db.executemany("UPDATE kept SET size = ? WHERE box = ?", [(size, box) for box, size in sizes.items()])

    def prune(self, policy: KeepPolicy, spare: float) -> list[KeptDisk]:
        """Forget what the policy does not keep, and what a restart of the machine may have damaged.

        `spare` is how many bytes more than now may be kept for the file system's sake; less than 0 is to be freed.
        """
        gone = []
        with self._store.transaction() as doomed:
            rows = self._db.execute(
                "SELECT id, name, created, size, coalesce(boot, :boot) = :boot FROM boxes JOIN kept ON box = id"
                " ORDER BY created DESC, id DESC",
                {"boot": self._boot},
            ).fetchall()
            since, total = time.time() - policy.seconds, 0
            room = min(policy.total, sum(size or 0 for *_, size, _ in rows) + spare)
            for number, (box_id, name, created, size, good) in enumerate(rows):
                total += size or 0
                if good and created >= since and total <= room and number < policy.most:
                    continue
                box = self._store.find("kept", name)
                if box is not None and box.id == box_id:
                    self._store.delete(box, doomed)
                    gone.append(KeptDisk(name, created, size))
        return gone[::-1]

    def settle(self) -> None:
        """Have what this process kept survive a restart of the machine. It may take seconds, in any thread."""
        if self._unsettled:
            self._store.settle()

    def settled(self) -> None:
        """Note that it does."""
        if self._unsettled:
            with self._store.transaction():
                rows = [(box,) for box in self._unsettled]
                self._db.executemany("UPDATE kept SET boot = NULL WHERE box = ?", rows)
            self._unsettled.clear()
