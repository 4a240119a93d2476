"""Who writes to which disk: a plain mount of a sandbox is the only one of its disk, others share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from forkyard.server.envelope import ApiError


@dataclass(frozen=True, slots=True)
class Use:
    """What a sandbox (or an exec, `holder`) has mounted of a disk; `exclusive` says that nobody else may."""

    disk_id: str
    holder: str
    told: str  # what messages call the holder
    path: str = ""  # the subdirectory, "" for the whole disk
    inode: int = 0
    exclusive: bool = False
    since: float = field(default_factory=time.time)


class Leases:
    """The uses of one server's disks. In memory: what a server leaves, no sandbox holds any more."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._changed = asyncio.Event()

    def of(self, disk_id: str) -> list[Use]:
        """The uses of a disk, oldest first."""
        return [use for use in self._uses if use.disk_id == disk_id]

    def take(self, uses: Iterable[Use]) -> None:
        """Note uses, all or none; those the same holders have stay. Raises ApiError 409 when a disk is another's."""
        new = [use for use in uses if not self._held(use)]
        for use in new:
            self.check(use)
        self._uses += new

    async def wait(self, use: Use, seconds: float) -> None:
        """Wait until a disk is nobody else's; ApiError 409 when it still is after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._other(use) is not None:
                    self._changed.clear()
                    await self._changed.wait()
        self.check(use)

    def check(self, use: Use) -> None:
        """Raise ApiError 409 when another holds a disk that is to be used by one alone."""
        other = self._other(use)
        if other is not None:
            raise ApiError(
                409,
                f"{other.told} has disk {use.disk_id} mounted to write: stop it first, or mount the disk with "
                "read_only or conditional",
                "disk_in_use",
            )

    def release(self, holder: str) -> None:
        """The holder has nothing mounted any more."""
        self._uses = [use for use in self._uses if use.holder != holder]
        self._changed.set()

    def revoke(self, disk_id: str, holder: str, inode: int) -> bool:
        """Let others write to a disk beside its holder, who keeps the mount; False when there is no such lease."""
        for at, use in enumerate(self._uses):
            if (use.disk_id, use.holder, use.inode, use.exclusive) == (disk_id, holder, inode, True):
                self._uses[at] = Use(disk_id, holder, use.told, use.path, inode, False, use.since)
                self._changed.set()
                return True
        return False

    def _held(self, use: Use) -> bool:
        return any((held.disk_id, held.holder) == (use.disk_id, use.holder) for held in self._uses)

    def _other(self, use: Use) -> Use | None:
        if not use.exclusive:
            return None
        mine = (held for held in self._uses if held.holder != use.holder and held.disk_id == use.disk_id)
        return next((held for held in mine if held.exclusive), None)
