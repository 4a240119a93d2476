"""Locks between processes: on files, let go by the kernel when the process that holds one dies."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


def locked(path: Path, how: int, mode: int = 0o600) -> int:
    """The open file at `path`, made when it is missing, with a lock as `how` says, until it is closed.

    It is the file that has this name once it is locked, whoever removed or replaced another meanwhile. Raises
    BlockingIOError where `how` has LOCK_NB.
    """
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            fcntl.flock(fd, how)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


class Owners:
    """The processes that share a directory: each is a file in it, locked as long as it lives. `own` is this one's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.own = secrets.token_hex(8)
        # Locked under another name first: a file of that name without a lock is a dead process's.
        unlocked = directory / f".{self.own}"
        self._lock = locked(unlocked, fcntl.LOCK_EX)
        unlocked.rename(directory / self.own)

    def dead(self) -> list[str]:
        """Those whose process ended without being tidy. What a kill left of a beginning is removed."""
        found = []
        for name in sorted(path.name for path in self._directory.iterdir()):
            if name == self.own or (fd := self._taken(name)) is None:
                continue
            if name.startswith("."):  # under its lock: whoever it is of begins again, if he lives
                (self._directory / name).unlink(missing_ok=True)
            else:
                found.append(name)
            os.close(fd)
        return found

    def is_dead(self, owner: str) -> bool:
        """Whether the process of an owner has ended."""
        if owner == self.own:
            return False
        if (fd := self._taken(owner)) is None:
            return not (self._directory / owner).exists()
        os.close(fd)
        return True

    def forget(self, owner: str) -> None:
        """Remove the file of one that is dead, when nothing of it is left."""
        (self._directory / owner).unlink(missing_ok=True)

    def close(self, *, tidy: bool) -> None:
        """End this one; one that is not `tidy` left something behind, and is a dead one to the next sweep."""
        if tidy:
            self.forget(self.own)
        os.close(self._lock)

    def _taken(self, owner: str) -> int | None:
        """The open file of an owner, locked: he is dead. None when he lives, and when there is no such file."""
        with suppress(FileNotFoundError):
            fd = os.open(self._directory / owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # so that two who look at once see the same
                return fd
            os.close(fd)
        return None
