"""The directory of all disks, and which of the processes that use it are alive."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from forkyard.disk.directory import remove_tree
from forkyard.errors import ConfigError
from forkyard.locks import Owners

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
        self._owners = Owners(self.path / "owners")

    def new_name(self) -> str:
        """A fresh name for a file in the making, by which it can be told whose it is."""
        return f"{self._owners.own}.{secrets.token_hex(8)}"

    def sweep(self, disks: Iterable[Path]) -> None:
        """Remove what dead processes left in the making, and what is in the trash."""
        dead = self._owners.dead()
        places = [place for disk in disks for pattern in _IN_THE_MAKING for place in disk.glob(pattern)] if dead else []
        for owner in dead:
            for place in places:
                for path in place.glob(f"{owner}.*"):
                    remove_tree(path)
            self._owners.forget(owner)
        for path in (self.path / "trash").iterdir():
            remove_tree(path)

    def close(self) -> None:
        """This process is through, and left nothing in the making."""
        self._owners.close(tidy=True)

    def _check_attributes(self) -> None:
        try:
            os.setxattr(self.path, "user.forkyard", b"1")
        except OSError as err:
            raise ConfigError(
                f"{self.path} cannot keep disks, since its file system has no user attributes ({err.strerror}): set "
                "FORKYARD_HOME to a place on ext4, xfs or btrfs"
            ) from err
