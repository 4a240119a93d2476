"""From a disk to a mount of its directory."""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.disk import Disk
from forkyard.sandbox import Mount
from forkyard.server.disks.access import told
from forkyard.server.disks.leases import Use

TARGET = "/mnt/archil"
"""Where clients expect a disk that is the only one."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A disk that is to be mounted: where, and what of it."""

    disk: Disk
    target: str = TARGET
    subdirectory: str = ""
    read_only: bool = False
    exclusive: bool = False
    wait: float = 0.0  # seconds it may wait for others to let go of the disk

    def mount(self) -> Mount:
        """The mount. Raises ApiError for a directory that is not there or a disk in a bucket, ConfigError for targets.

        The path is told without links: the disk's own by us, what is beneath it by the disk, which refuses them. Who
        opens it looks again.
        """
        with told():
            top = self.disk.directory().resolve()
            self.disk.directory(self.subdirectory)
        return Mount(top / self.subdirectory, self.target, self.read_only)

    def use(self, holder: str, name: str) -> Use:
        """The use that `holder` makes of the disk."""
        with told():
            inode = self.disk.directory(self.subdirectory).lstat().st_ino
        return Use(self.disk.info.id, holder, name, self.subdirectory, inode, self.exclusive)
