"""A copy of a whole disk, sharing blocks where the file system can."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forkyard.disk.directory.place import Place
from forkyard.disk.directory.tree import inner, open_file, top
from forkyard.disk.errors import DiskError

_DEEPEST = 256
_AT_ONCE = 1 << 30
_Way = tuple[bytes, ...]


def copy_objects(place: Place, target: Path) -> None:
    """Copy directories, plain files and links (which are not followed) into `target`, which is made.

    Each file is copied between two appends. InvalidRequest: deeper than 256 directories.
    """
    target.mkdir()
    with top(place.objects) as source, top(target) as copy:
        _settle(source, copy)
        waiting: list[_Way] = [()]
        while waiting:
            way = waiting.pop()
            if len(way) > _DEEPEST:
                raise DiskError(
                    "InvalidRequest", f"a disk with more than {_DEEPEST} directories in each other has no branches"
                )
            with suppress(FileNotFoundError, NotADirectoryError), inner(source, way) as here, inner(copy, way) as there:
                waiting += [(*way, name) for name in _copy_directory(place, way, here, there)]
                os.fsync(there)


def _copy_directory(place: Place, way: _Way, here: int, there: int) -> Iterator[bytes]:
    """The names of its directories, made and still empty."""
    names: list[bytes] = []
    with os.scandir(here) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if entry.is_symlink():
                with suppress(FileNotFoundError, OSError):
                    os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(place, way, name, here, there)
            elif entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError, NotADirectoryError), inner(here, [name]) as found:
                    os.mkdir(name, 0o700, dir_fd=there)
                    with inner(there, [name]) as made:
                        _settle(found, made)
                    names.append(name)
    return iter(names)


def _copy_file(place: Place, way: _Way, name: bytes, here: int, there: int) -> None:
    fd = open_file(here, name)
    if fd is None:
        return
    try:
        key = os.fsdecode(b"/".join((*way, name)))
        with place.stripes.calm(key):
            size = os.fstat(fd).st_size
        copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
        try:
            _copy_bytes(fd, copy, size)
            _settle(fd, copy)
            os.fsync(copy)
        finally:
            os.close(copy)
    finally:
        os.close(fd)


def _copy_bytes(fd: int, copy: int, size: int) -> None:
    """Holes stay holes."""
    os.ftruncate(copy, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        except OSError as err:
            if err.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        while start < at:
            count = os.copy_file_range(fd, copy, min(_AT_ONCE, at - start), start, start)
            if count == 0:  # cut off meanwhile
                return
            start += count


def _settle(source: int, copy: int) -> None:
    """Owner, attributes, mode and times, as far as this process may."""
    stat = os.fstat(source)
    if os.getuid() == 0:
        os.fchown(copy, stat.st_uid, stat.st_gid)
    for name in os.listxattr(source):
        if name.startswith("user."):
            os.setxattr(copy, name, os.getxattr(source, name))
    os.fchmod(copy, stat.st_mode & 0o7777)
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
