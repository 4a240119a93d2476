"""Copy the uppermost layers of a stack into one new layer: whole, and with everything overlayfs wrote into them.

Of one layer it can be a plain copy: the disk of a sandbox that runs. Of several it is what they are together, seen over
what is beneath: a whiteout is kept where it still hides something. Elsewhere it must go, since in a directory that is
in one layer only overlayfs expects none and shows it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress

from . import kernel
from .layers import OPAQUE_ATTRIBUTE, close_all, enter, is_opaque, is_whiteout, names_in, open_all, status_of

# A hint for inode numbers: the file handle of what was copied up, which may be in a layer that is merged away.
ORIGIN = "user.overlay.origin"
PIECE = 64 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def merge(layers: list[str], beneath: str | None, target: str, links: str, check: Callable[[], None]) -> None:
    """Copy directories `layers`, topmost first, into `target`, which is made. `links` is an empty directory beside it.

    `beneath` is a directory in which all that is beneath the layers is merged; without it, a layer is copied as it is.
    `check` is called often; what it raises ends the copy.
    """
    os.mkdir(target, 0o700)
    staging, into, *opened = open_all([links, target, *layers, *([] if beneath is None else [beneath])])
    old = None if beneath is None else opened.pop()
    try:
        _Merger(staging, check, plain=beneath is None).run(_Level(opened, into, old, mark=False))
    finally:
        for name in os.listdir(staging):
            os.unlink(name, dir_fd=staging)
        os.close(staging)


class _Level:
    """One directory on the way down. `old` is what is beneath, if it is a directory that shows; `mark`: hide it."""

    def __init__(self, layers: list[int], target: int, old: int | None, *, mark: bool) -> None:
        self.layers, self.target, self.old, self.mark = layers, target, old, mark
        self.names: Iterator[tuple[str, list[int]]] = iter(names_in(layers).items())

    def close(self) -> None:
        close_all([*self.layers, self.target, *([] if self.old is None else [self.old])])


class _Merger:
    def __init__(self, links: int, check: Callable[[], None], *, plain: bool) -> None:
        self._links, self._check, self._plain = links, check, plain
        self._clones = True  # until the file system says that it cannot

    def run(self, top: _Level) -> None:
        stack = [top]
        try:
            while stack:
                self._check()
                level = stack[-1]
                name, layers = next(level.names, ("", []))
                if not name:
                    _finish_directory(level)
                    stack.pop().close()
                    continue
                with suppress(FileNotFoundError):  # a process that was not at rest removed it
                    below = self._one(level, name, layers)
                    if below:
                        stack.append(below)
        finally:
            for level in stack:
                level.close()

    def _one(self, level: _Level, name: str, layers: list[int]) -> _Level | None:
        """Copy one name; of a directory, return what is left to do."""
        status = os.stat(name, dir_fd=layers[0], follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            opened, ends = enter(name, layers)
            try:
                return self._below(level, name, opened, ends)
            except BaseException:
                close_all(opened)
                raise
        if is_whiteout(status) and not self._plain and (level.old is None or status_of(name, level.old) is None):
            return None
        if status.st_nlink == 1:
            self._make(layers[0], name, level.target, status)
        elif not self._linked(status, level.target, name):
            self._make(layers[0], name, level.target, status)
            with suppress(FileExistsError):
                os.link(
                    name, str(status.st_ino), src_dir_fd=level.target, dst_dir_fd=self._links, follow_symlinks=False
                )
        return None

    def _below(self, level: _Level, name: str, opened: list[int], ends: bool) -> _Level:
        os.mkdir(name, 0o700, dir_fd=level.target)
        target = os.open(name, kernel.REAL_FOLDER, dir_fd=level.target)
        before = None if level.old is None else status_of(name, level.old)
        hides = before is not None and (ends or not stat.S_ISDIR(before.st_mode))
        shows = before is not None and not hides
        return _Level(
            opened, target, os.open(name, kernel.REAL_FOLDER, dir_fd=level.old) if shows else None, mark=hides
        )

    def _linked(self, status: os.stat_result, target: int, name: str) -> bool:
        """Make `name` another link of a file that is copied already. All layers are of one file system."""
        first = str(status.st_ino)
        try:
            os.link(first, name, src_dir_fd=self._links, dst_dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as err:
            if err.errno != errno.EMLINK:
                raise
            os.unlink(first, dir_fd=self._links)  # a file may have no more names: go on with another
            return False
        return True

    def _make(self, folder: int, name: str, target: int, status: os.stat_result) -> None:
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self._copy_file(folder, name, target)
            return
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=folder), name, dir_fd=target)
        else:  # fifos, sockets, whiteouts; of a device the kernel allows no more
            os.mknod(name, kind | 0o600, status.st_rdev, dir_fd=target)
        if is_whiteout(status):
            return
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        if kind != stat.S_IFLNK:
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _copy_file(self, folder: int, name: str, target: int) -> None:
        source = os.open(name, _READ, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it was replaced while it was copied", name)
            copy = os.open(name, _WRITE, 0o600, dir_fd=target)
            try:
                self._copy_content(source, copy)
                _copy_attributes(source, copy)
            finally:
                os.close(copy)
        finally:
            os.close(source)

    def _copy_content(self, source: int, copy: int) -> None:
        if self._clones:
            try:
                fcntl.ioctl(copy, kernel.FICLONE, source)
                return
            except OSError as err:
                if err.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV):
                    raise
                self._clones = False
        size = os.fstat(source).st_size
        os.ftruncate(copy, size)
        start = 0
        while start < size:
            try:
                start = os.lseek(source, start, os.SEEK_DATA)
                end = os.lseek(source, start, os.SEEK_HOLE)
            except OSError as err:
                if err.errno != errno.ENXIO:  # nothing but a hole is left
                    raise
                return
            while start < end:
                self._check()
                count = os.copy_file_range(source, copy, min(PIECE, end - start), start, start)
                if count == 0:  # it shrank
                    return
                start += count


def _copy_attributes(source: int, copy: int) -> None:
    """Owner, extended attributes, mode and times, in the order in which none undoes another."""
    status = os.fstat(source)
    os.fchown(copy, status.st_uid, status.st_gid)
    for name in os.listxattr(source):
        if name != ORIGIN:
            os.setxattr(copy, name, os.getxattr(source, name))
    os.fchmod(copy, stat.S_IMODE(status.st_mode))
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _finish_directory(level: _Level) -> None:
    _copy_attributes(level.layers[0], level.target)
    if level.mark and not is_opaque(level.target):
        os.setxattr(level.target, OPAQUE_ATTRIBUTE, b"y")
