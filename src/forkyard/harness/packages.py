"""Packages of public registries on the host: fetched once, kept under FORKYARD_HOME, bounded as a whole."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forkyard.errors import HarnessError
from forkyard.sandbox import default_home
from forkyard.values import MIB

CACHE_LIMIT = 4096 * MIB
_ON_ITS_WAY = ".new-"
_LEFT_SECONDS = 86400.0


def packages_directory() -> Path:
    """Where fetched packages are kept. Raises HarnessError when it cannot be made."""
    path = default_home() / "packages"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as err:
        raise HarnessError(f"{path} cannot be made: {err.strerror}; set FORKYARD_HOME to a directory of yours") from err
    return path


@contextmanager
def on_its_way(target: Path) -> Iterator[Path]:
    """A fresh directory to fetch into, removed at the end; move what is whole out of it with `settle`."""
    with tempfile.TemporaryDirectory(prefix=_ON_ITS_WAY, dir=target.parent) as directory:
        yield Path(directory)


def settle(fetched: Path, target: Path) -> None:
    """Give what was fetched its name at once; of two who fetched the same, either may win."""
    try:
        fetched.replace(target)
    except OSError:  # a directory that somebody else put there meanwhile
        if not target.exists():
            raise
    make_room(target)


def make_room(newest: Path) -> None:
    """Forget what was used longest ago until everything fits the bound, and what killed processes left for a day."""
    found = []
    for path in newest.parent.iterdir():
        with suppress(FileNotFoundError):  # somebody else makes room, too
            found.append((path.stat().st_mtime, _size(path), path))
    total = sum(size for _, size, _ in found)
    for used_at, size, path in sorted(found, key=lambda entry: entry[0]):
        on_its_way = path.name.startswith(_ON_ITS_WAY)
        if used_at < time.time() - _LEFT_SECONDS if on_its_way else total > CACHE_LIMIT and path != newest:
            _remove(path)
            total -= size


def used(path: Path) -> Path:
    """The same path, known to have been of use now."""
    with suppress(OSError):
        os.utime(path)
    return path


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
