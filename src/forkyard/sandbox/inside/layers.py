"""Raw layers, as overlayfs keeps them on a disk: what a name in one of them says about the layers beneath it.

Everything is reached by descriptors of directories and single names, so no link a guest left is ever followed. Layers
are lists of descriptors of one and the same directory, topmost first.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from . import kernel

OPAQUE_ATTRIBUTE = "user.overlay.opaque"


def status_of(name: str, folder: int) -> os.stat_result | None:
    """What a name is, or None when nothing is there."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Whether the name says: what lies beneath is deleted."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: int) -> bool:
    """Whether a directory hides those of the same name beneath it."""
    with suppress(OSError):
        return os.getxattr(folder, OPAQUE_ATTRIBUTE) == b"y"
    return False


def names_in(layers: list[int]) -> dict[str, list[int]]:
    """Every name in any of the layers, with the layers that have it."""
    found: dict[str, list[int]] = {}
    for layer in layers:
        for name in os.listdir(layer):
            found.setdefault(name, []).append(layer)
    return found


def enter(name: str, layers: list[int]) -> tuple[list[int], bool]:
    """Open the directory `name`, in as many of the layers as show through; and whether all beneath them is hidden."""
    opened: list[int] = []
    try:
        for layer in layers:
            status = status_of(name, layer)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                return opened, True
            opened.append(os.open(name, kernel.REAL_FOLDER, dir_fd=layer))
            if is_opaque(opened[-1]):
                return opened, True
    except BaseException:
        close_all(opened)
        raise
    return opened, False


def open_all(paths: list[str]) -> list[int]:
    """Open directories, all of them or none."""
    opened: list[int] = []
    try:
        for path in paths:
            opened.append(os.open(path, kernel.REAL_FOLDER))
    except BaseException:
        close_all(opened)
        raise
    return opened


def close_all(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
