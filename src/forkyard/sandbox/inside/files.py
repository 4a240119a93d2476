"""Files beneath a directory that stands for the whole file system: "/" in a sandbox.

Everything is resolved by descriptors from that directory on, links too; no name leads out of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from . import kernel

SYSTEM = ("proc", "sys", "dev")  # of these a sandbox has its own, which are on no disk
INSIDE = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS


@contextmanager
def root_at(path: str) -> Iterator[int]:
    """A descriptor of the directory that stands for "/"."""
    root = os.open(path, kernel.REAL_FOLDER)
    try:
        yield root
    finally:
        os.close(root)


def open_inside(root: int, path: str, flags: int) -> int:
    """open(2) in a world whose "/" is `root`; errors name `path`."""
    return kernel.open_beneath(root, path, flags, INSIDE)


def make_directories(root: int, path: str) -> int:
    """Open the directory `path`, making what is missing; NotADirectoryError when something else is in the way."""
    missing: list[str] = []
    rest = path.rstrip("/")
    with told_of(path):
        while True:
            try:
                folder = open_inside(root, rest, kernel.FOLDER_OR_LINK)
                break
            except FileNotFoundError:
                if not rest:
                    raise
                rest, _, name = rest.rpartition("/")
                missing.append(name)
        while missing:
            name = missing.pop()
            try:
                with suppress(FileExistsError):
                    make_directory(folder, name)
                below = os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
    return folder


@contextmanager
def parent_of(root: int, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """The open directory that holds the last part of `path`, made if asked for, and that part's name."""
    directory, _, name = path.rstrip("/").rpartition("/")
    with told_of(path):
        folder = make_directories(root, directory) if make else open_inside(root, directory, kernel.FOLDER_OR_LINK)
    try:
        yield folder, name or "."
    finally:
        os.close(folder)


def open_for_read(root: int, path: str) -> int:
    """A descriptor of a regular file, opened without ever blocking; OSError otherwise."""
    fd = open_inside(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def open_for_write(root: int, path: str, mode: int, new: str) -> int:
    """A descriptor of an empty file called `new`, made beside `path` whose place it is to take; parents are made."""
    with parent_of(root, path, make=True) as (folder, name), told_of(path):
        if _is_directory(folder, name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        fd = create(folder, new)
    os.fchmod(fd, mode & 0o7777)
    return fd


def _is_directory(folder: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def place(root: int, path: str, new: str, keep: bool) -> None:
    """Put the file called `new` in the place of whatever file or link is at `path`, or take it away."""
    with parent_of(root, path) as (folder, name), told_of(path):
        if keep:
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)


@contextmanager
def told_of(path: str) -> Iterator[None]:
    """Errors of the body name `path`, whatever part of it they came from."""
    try:
        yield
    except OSError as err:
        raise OSError(err.errno, err.strerror, path) from None


def create(folder: int, name: str) -> int:
    """A descriptor of a new file in an open directory."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)


def make_directory(folder: int, name: str) -> None:
    """Make a directory everybody may enter, whatever this process's umask."""
    os.mkdir(name, 0o755, dir_fd=folder)
    mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    if mode | 0o755 != mode:
        fd = os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
        os.fchmod(fd, mode | 0o755)
        os.close(fd)
