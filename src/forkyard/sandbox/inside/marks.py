"""A command's tree is known by a mark: a soft limit that nobody uses, which all it starts inherit, detached or not.

The limit is this process's, so is what is kept here of it.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
from collections.abc import Collection
from contextlib import suppress

_MOST = 100_000
_ROUNDS = 1000
_LIMITS_NAME = b"Max msgqueue size"
_MSGQUEUE = int(resource.RLIMIT_MSGQUEUE)
_UNLIMITED = 1 << 40
_OWN, _HIGHEST = (limit if 0 <= limit <= _UNLIMITED else _UNLIMITED for limit in resource.getrlimit(_MSGQUEUE))
_of: dict[int, int] = {}  # the mark of each command that runs, by its request
_first = _HIGHEST - 1
_numbers = itertools.count()


def be_apart() -> None:
    """Give none of the marks that another gives among the same processes: it may not kill what has them."""
    global _first
    _first -= _MOST


def put(request: int) -> None:
    """Mark what this process starts next."""
    mark = _first - next(_numbers) % _MOST
    resource.setrlimit(_MSGQUEUE, (mark, _HIGHEST))
    _of[request] = mark


def take_off() -> None:
    """Be as unmarked as this process was at first: it would be killed with a command whose mark it has."""
    resource.setrlimit(_MSGQUEUE, (_OWN, _HIGHEST))


def forget(request: int) -> None:
    """A command has ended, or never began."""
    _of.pop(request, None)


def kill(request: int, roots: Collection[int]) -> None:
    """Kill everything a command started, and `roots`: stop all of it first, so that nothing forks meanwhile.

    OSError when it forks faster than it is stopped.
    """
    mark = _of.get(request)
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        found = (_with_mark(mark) | set(roots)) - stopped
        if not found:
            break
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    if found:
        raise OSError(errno.EAGAIN, "its processes fork faster than they are stopped")


def _with_mark(mark: int | None) -> set[int]:
    """The live processes whose soft limit carries a mark."""
    found = set()
    wanted = str(mark).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            with open(f"/proc/{name}/limits", "rb") as file:
                line = next((line for line in file if line.startswith(_LIMITS_NAME)), b"")
        except OSError:  # it ended meanwhile
            continue
        if line[len(_LIMITS_NAME) :].split()[:1] == [wanted]:
            found.add(int(name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
