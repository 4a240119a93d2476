"""What the uppermost layers of a stack change of what lies beneath them, and how much room layers take."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

from . import kernel
from .layers import close_all, enter, is_whiteout, names_in, open_all, status_of

MOST = 100_000  # changes told at once
_PIECE = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Change = tuple[str, str, bool]  # path, kind, and whether it is, and was, a regular file


def changes(
    layers: list[str], base: str, prefix: str, skip: tuple[str, ...], check: Callable[[], None]
) -> Iterator[Change]:
    """Compare directories `layers`, topmost first, with the directory `base`, in which all beneath them is merged.

    A directory that was added or deleted stands for what is in it only when it was deleted. Names of `skip` are left
    out at the top. Times alone are no change.
    """
    *opened, old = open_all([*layers, base])
    stack = [_Level(prefix, opened, old, hidden=False, skip=skip)]
    try:
        while stack:
            check()
            level = stack[-1]
            name = next(level.names, None)
            if name is None:
                stack.pop().close()
                continue
            try:
                told, regular, below = _one(level, name)
            except FileNotFoundError:  # removed meanwhile
                continue
            if told:
                yield f"{level.prefix}/{name}", told, regular
            if below:
                stack.append(below)
    finally:
        for level in stack:
            level.close()


class _Level:
    """One directory on the way down: in the layers, and in the old state, if it was a directory there."""

    def __init__(
        self, prefix: str, layers: list[int], old: int | None, *, hidden: bool, skip: tuple[str, ...] = ()
    ) -> None:
        self.prefix, self.layers, self.old = prefix, layers, old
        self.found = names_in(layers)
        gone = set(os.listdir(old)) - self.found.keys() if hidden and old is not None else set()
        self.names = iter(sorted((self.found.keys() | gone) - set(skip)))

    def close(self) -> None:
        close_all(self.layers if self.old is None else [*self.layers, self.old])


def _one(level: _Level, name: str) -> tuple[str | None, bool, _Level | None]:
    """What to tell of one name, and where to go on."""
    layers = level.found.get(name, [])
    before = None if level.old is None else status_of(name, level.old)
    now = None if not layers else os.stat(name, dir_fd=layers[0], follow_symlinks=False)
    if now is None or is_whiteout(now):
        return "deleted" if before else None, _regular(before), None
    below = _below(level, name, layers, before) if stat.S_ISDIR(now.st_mode) else None
    if before is None:
        return "added", _regular(now), below
    if _marks(now) != _marks(before):
        return "modified", _regular(now) and _regular(before), below
    if stat.S_ISDIR(now.st_mode):
        return None, False, below
    assert level.old is not None
    same = _same_content((name, layers[0], now), (name, level.old, before))
    return None if same else "modified", _regular(now), None


def _regular(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode)


def _below(level: _Level, name: str, layers: list[int], before: os.stat_result | None) -> _Level:
    opened, hidden = enter(name, layers)
    try:
        was = before is not None and stat.S_ISDIR(before.st_mode)
        old = os.open(name, kernel.REAL_FOLDER, dir_fd=level.old) if was else None
    except BaseException:
        close_all(opened)
        raise
    return _Level(f"{level.prefix}/{name}", opened, old, hidden=hidden)


def _marks(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_uid, status.st_gid


def _same_content(now: tuple[str, int, os.stat_result], before: tuple[str, int, os.stat_result]) -> bool:
    mode = now[2].st_mode
    if stat.S_ISLNK(mode):
        return os.readlink(now[0], dir_fd=now[1]) == os.readlink(before[0], dir_fd=before[1])
    if not stat.S_ISREG(mode):
        return True
    if now[2].st_size != before[2].st_size:
        return False
    with open(now[0], "rb", opener=_in(now[1])) as one, open(before[0], "rb", opener=_in(before[1])) as other:
        while True:
            piece = one.read(_PIECE)
            if piece != other.read(_PIECE):
                return False
            if not piece:
                return True


def _in(folder: int) -> Callable[[str, int], int]:
    return lambda name, flags: os.open(name, _READ, dir_fd=folder)


def room(top: str, check: Callable[[], None]) -> int:
    """The bytes a directory tree takes on disk; a file of many names counts once, shared blocks every time."""
    total, seen = 0, set()
    try:
        stack = [os.open(top, kernel.REAL_FOLDER)]
    except FileNotFoundError:  # deleted meanwhile
        return 0
    names = [iter(os.listdir(stack[0]))]
    try:
        while stack:
            check()
            name = next(names[-1], None)
            if name is None:
                os.close(stack.pop())
                names.pop()
                continue
            status = status_of(name, stack[-1])
            if status is None or (status.st_nlink > 1 and status.st_ino in seen):
                continue
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                below = _opened(name, stack[-1])
                if below is not None:
                    stack.append(below)
                    names.append(iter(os.listdir(below)))
            elif status.st_nlink > 1:
                seen.add(status.st_ino)
    finally:
        close_all(stack)
    return total


def _opened(name: str, folder: int) -> int | None:
    try:
        return os.open(name, kernel.REAL_FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):  # replaced meanwhile
        return None
