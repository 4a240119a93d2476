"""What a subprocess sandbox has of the host: a directory as its file system, where in it things are, and the user."""

from __future__ import annotations

import os
import posixpath
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkyard.sandbox.common import path_error
from forkyard.sandbox.inside import files


class Ground:
    """A directory of the host, and the working directory in it."""

    def __init__(self, disk: Path, workdir: str) -> None:
        self._disk, self._workdir = disk, workdir

    @contextmanager
    def root(self) -> Iterator[int]:
        """The directory that is "/", with the working directory made when missing."""
        with files.root_at(str(self._disk)) as root:
            os.close(files.make_directories(root, self.path(".")))
            yield root

    def path(self, path: str) -> str:
        """A path as told from "/"."""
        return posixpath.normpath(posixpath.join("/", self._workdir, path))

    @contextmanager
    def directory(self, cwd: str | None) -> Iterator[int]:
        """The open directory of a command. Raises what `run` does for one that is none."""
        with self.root() as root:
            directory = self.path(cwd or ".")
            try:
                there = files.open_inside(root, directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as err:
                told = OSError(err.errno, f"cannot run a command there: {err.strerror}")
                raise path_error(told, cwd or directory) from err
            try:
                yield there
            finally:
                os.close(there)


def own_user() -> tuple[str, str]:
    """Number and name of the user all commands run as."""
    uid = os.getuid()
    try:
        return str(uid), pwd.getpwuid(uid).pw_name
    except KeyError:  # a number without a name, as in many containers
        return str(uid), str(uid)


def check_user(user: str | None) -> None:
    """ValueError for another user than the one all commands run as."""
    if user is not None and user not in own_user():
        raise ValueError(f"cannot run as {user!r}: commands of a subprocess sandbox run as {own_user()[1]}")
