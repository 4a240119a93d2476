"""Deleting trees that any guest wrote, and may be writing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from . import kernel

_AGAIN = 100  # times in all that a directory is found to be not empty


def remove_tree(folder: int, name: str) -> None:
    """Delete whatever is called `name` in an open directory, if anything is, at any depth and through no link.

    Processes inside may go on writing there meanwhile, as long as they are let.
    """
    if _unlinked(folder, name):
        return
    left = _AGAIN
    stack = _opened(folder, name)
    try:
        while stack:
            done, at, names = stack[-1]
            below = next(names, None)
            if below is not None:
                if not _unlinked(at, below):
                    stack += _opened(at, below)
            elif not _removed(done, stack[-2][1] if len(stack) > 1 else folder, last=left == 1):
                left -= 1
                os.fchmod(at, 0o700)  # nobody but root writes there any more
                stack[-1] = (done, at, iter(os.listdir(at)))
            else:
                os.close(stack.pop()[1])
    finally:
        for _, fd, _ in stack:
            os.close(fd)


def _unlinked(folder: int, name: str) -> bool:
    """Whether nothing of that name is there any more; False for a directory."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _removed(name: str, folder: int, *, last: bool) -> bool:
    """Whether a directory is gone; False when it is not empty, which is raised when it is the `last` time.

    Something mounted, which no guest can have done, can be no more than empty.
    """
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as err:
        if err.errno == errno.ENOTEMPTY and not last:
            return False
        if err.errno not in (errno.EBUSY, errno.ENOENT):
            raise
    return True


def _opened(folder: int, name: str) -> list[tuple[str, int, Iterator[str]]]:
    """A directory to be emptied; none when it is gone already."""
    try:
        fd = os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return []
    return [(name, fd, iter(os.listdir(fd)))]
