"""Steps through a disk's directory that lead nowhere else.

Guests write into it, at the same time too. So every step is one open of one name in a directory that is held open,
links are not followed, and nothing is opened for reading or writing before it is known to be a plain file.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forkyard.disk.errors import DiskError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES = 100_000
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
Segments = Sequence[bytes]


def segments_of(key: str) -> list[bytes]:
    """The names on the way to an object, its own last."""
    return key.removesuffix("/").encode().split(b"/")


@contextmanager
def top(path: Path) -> Iterator[int]:
    """A disk's own directory, opened. NoSuchBucket: it was deleted."""
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        raise DiskError("NoSuchBucket", "this disk, or branch, was deleted") from None
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def inner(root: int, segments: Segments) -> Iterator[int]:
    """A directory below, opened. FileNotFoundError; NotADirectoryError: something else is on the way, a link too."""
    fd = os.dup(root)
    try:
        for name in segments:
            deeper = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


@contextmanager
def made(root: int, segments: Segments, owner: tuple[int, int] | None) -> Iterator[tuple[int, bool]]:
    """As `inner`, and what is missing is made (0755); whether anything was. Those that hold a new one are synced."""
    fd, new = os.dup(root), False
    try:
        for name in segments:
            deeper = _open_or_make(fd, name, owner)
            if deeper is None:
                new = True
                os.fsync(fd)
                deeper = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd, new
    finally:
        os.close(fd)


def _open_or_make(fd: int, name: bytes, owner: tuple[int, int] | None) -> int | None:
    """The directory of a name, opened; None: it was made."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        try:
            os.mkdir(name, 0o755, dir_fd=fd)
        except FileExistsError:  # somebody else was faster
            return os.open(name, _DIRECTORY, dir_fd=fd)
    if owner is not None and os.getuid() == 0:
        os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
    return None


def open_file(parent: int, name: bytes, flags: int = os.O_RDONLY) -> int | None:
    """A plain file, opened; None: there is none of this name, but perhaps a link, a directory, a FIFO, a device."""
    try:
        named = os.open(name, _NAMED, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(named).st_mode):
            return None
        return os.open(f"/proc/self/fd/{named}", flags | os.O_CLOEXEC)  # the very file that was looked at
    finally:
        os.close(named)


def is_directory(parent: int, name: bytes) -> bool:
    """Whether a name stands for a directory, and not for a link to one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def clear_empty(parent: int, name: bytes, deep: int = 32) -> bool:
    """Remove a directory that holds nothing but such directories, `deep` in each other at most; whether it is gone."""
    if clear_leaf(parent, name):
        return True
    if deep == 0:
        return False
    try:
        with inner(parent, [name]) as fd:
            with os.scandir(fd) as entries:
                names = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
            emptied = all(directory and clear_empty(fd, each, deep - 1) for each, directory in names)
    except OSError:
        return False
    return emptied and clear_leaf(parent, name)


def clear_leaf(parent: int, name: bytes) -> bool:
    """Remove an empty directory; whether it is gone."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with all in it; links in it are removed, not followed.

    Guests nest directories deeper than any recursion goes, so what lies below is moved up before it is removed. What
    cannot be removed, since somebody goes on writing there or it is another user's, is left.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    with suppress(OSError):
        with top(path) as fd:
            for _ in range(_PASSES):
                below = _emptied(fd)
                if not below:
                    break
                for name in below:
                    _lift(fd, name)
        path.rmdir()


def _lift(fd: int, name: bytes) -> None:
    """Remove a directory after its directories were moved beside it."""
    _open_up(fd, name)
    with inner(fd, [name]) as inside:
        for each in _emptied(inside):
            _open_up(inside, each)
            os.rename(each, secrets.token_hex(16), src_dir_fd=inside, dst_dir_fd=fd)
    with suppress(OSError):  # somebody has just written there: the next pass
        os.rmdir(name, dir_fd=fd)


def _emptied(fd: int) -> list[bytes]:
    """Remove what is no directory; the directories' names."""
    with os.scandir(fd) as entries:
        found = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, directory in found:
        if not directory:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
    return [name for name, directory in found if directory]


def _open_up(fd: int, name: bytes) -> None:
    """Let its owner into a directory, which a guest may have closed."""
    if os.getuid() == 0:
        return
    named = os.open(name, _NAMED | os.O_DIRECTORY, dir_fd=fd)
    try:
        Path(f"/proc/self/fd/{named}").chmod(0o700)
    finally:
        os.close(named)
