"""The directory of all disks, and which of the processes that use it are alive."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from forkyard.disk.directory import remove_tree
from forkyard.errors import ConfigError

_DIRECTORIES = ("owners", "trash")
_IN_THE_MAKING = ("state/tmp", "drafts", "branches/*/state/tmp")


class Home:
    """`named-disks` of a FORKYARD_HOME, open to its owner alone. ConfigError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)  # a guest's files may be set-user-id: nobody else on this machine reaches them
            for name in _DIRECTORIES:
                (self.path / name).mkdir(exist_ok=True)
        except OSError as err:
            raise ConfigError(
                f"{self.path} cannot be used: {err.strerror}; set FORKYARD_HOME to a place of yours"
            ) from err
        self._check_attributes()
        self._owner = secrets.token_hex(8)
        # Locked under another name first: a file of that name without a lock is a dead process's.
        unlocked = self.path / "owners" / f".{self._owner}"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / "owners" / self._owner)

    def new_name(self) -> str:
        """A fresh name for a file in the making, by which it can be told whose it is."""
        return f"{self._owner}.{secrets.token_hex(8)}"

    def sweep(self, disks: Iterable[Path]) -> None:
        """Remove what dead processes left in the making, and what is in the trash."""
        dead = [path.name for path in (self.path / "owners").glob("[!.]*") if self._is_dead(path)]
        places = [place for disk in disks for pattern in _IN_THE_MAKING for place in disk.glob(pattern)] if dead else []
        for owner in dead:
            for place in places:
                for path in place.glob(f"{owner}.*"):
                    remove_tree(path)
            (self.path / "owners" / owner).unlink(missing_ok=True)
        for path in (self.path / "trash").iterdir():
            remove_tree(path)

    def close(self) -> None:
        """This process is through, and left nothing in the making."""
        with suppress(FileNotFoundError):
            (self.path / "owners" / self._owner).unlink()
        os.close(self._lock)

    def _is_dead(self, path: Path) -> bool:
        if path.name == self._owner:
            return False
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # somebody else has just swept it
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def _check_attributes(self) -> None:
        try:
            os.setxattr(self.path, "user.forkyard", b"1")
        except OSError as err:
            raise ConfigError(
                f"{self.path} cannot keep disks, since its file system has no user attributes ({err.strerror}): set "
                "FORKYARD_HOME to a place on ext4, xfs or btrfs"
            ) from err
