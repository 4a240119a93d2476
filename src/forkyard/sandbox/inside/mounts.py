"""Directories of the host in a sandbox: handed to its PID 1 before the boot, attached while its disk is mounted.

Where the host may, it hands over a mount that is attached nowhere yet, with owners shifted. Otherwise it hands over
the directory itself, and its path: what is found there is bound, if it is still the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import files, kernel


class Held(NamedTuple):
    """What is to be mounted: a descriptor, which is ours, and where; with a `source` it is to be bound from there."""

    fd: int
    target: str
    source: str | None
    read_only: bool


def held(fd: int, message: dict[str, Any]) -> Held:
    """What a request "mount" brings."""
    return Held(os.dup(fd), message["target"], message["source"], message["read_only"])


def attach(waiting: list[Held], root: str) -> None:
    """Mount everything that waits into the file system at `root`. Targets are made; no link leads out of it.

    OSError names the target: also when a link leads from it to another file system, one of the sandbox's own.
    """
    targets: list[int] = []
    try:
        with files.root_at(root) as top:
            for one in waiting:  # all of them first: what is mounted must not be the place of another
                targets.append(_place(top, one.target))
        for one, target in zip(waiting, targets, strict=True):
            with _told(one.target):
                _attach(one, target)
    finally:
        for fd in [*targets, *(one.fd for one in waiting)]:
            os.close(fd)
        waiting.clear()


def _place(top: int, target: str) -> int:
    with _told(target):
        found = files.make_directories(top, target)
        if os.fstat(found).st_dev == os.fstat(top).st_dev:
            return found
        os.close(found)
        raise OSError(errno.EXDEV, "a link leads from there to a system directory")


def _attach(one: Held, target: int) -> None:
    if one.source is None:
        kernel.attach(one.fd, target)
        return
    tree = kernel.clone_mount(one.source)
    try:
        found, wanted = os.fstat(tree), os.fstat(one.fd)
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            raise OSError(errno.ESTALE, "its source is another directory where sandboxes start")
        kernel.confine(tree, one.read_only)
        kernel.attach(tree, target)
    finally:
        os.close(tree)


@contextmanager
def _told(target: str) -> Iterator[None]:
    """Errors of the body say what could not be mounted on."""
    try:
        yield
    except OSError as err:
        raise OSError(err.errno, f"nothing can be mounted on {target}: {err.strerror}", target) from None
