"""Who goes first when a sandbox's memory is full: never PID 1, which counts as larger than many a small command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import kernel

_FIRST, _LAST = b"500", b"0"


def open_score() -> int:
    """This process's own score, to be opened before there are commands: a process nobody may look into cannot."""
    kernel.set_dumpable(True)
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    finally:
        kernel.set_dumpable(False)


@contextmanager
def first_to_go(score: int) -> Iterator[None]:
    """What is started meanwhile is killed before this process is."""
    os.pwrite(score, _FIRST, 0)
    try:
        yield
    finally:
        os.pwrite(score, _LAST, 0)
