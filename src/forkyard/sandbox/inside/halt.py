"""Bring every process of a sandbox but PID 1 to a halt, and let them go on.

By SIGSTOP, not by a freezer group: it needs no control groups, so it is the same for root and for ordinary users and
costs a sandbox that is never paused nothing. kill(-1) reaches all processes at once, under the lock that a fork needs
as well, and a fork in which a signal is pending starts anew: nothing escapes by being born. What it leaves visible is
small: a parent that asks for stopped children is told, and a few calls (epoll_wait, semop) end early with EINTR, as
after any stop. A process that arranged for a SIGCONT of its own goes on until it is stopped again, which PID 1 does
every `AGAIN` seconds.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress

AGAIN = 0.25
_PATIENCE = 5.0
_UNINTERRUPTIBLE = 0.5  # for a parent that waits in vfork, which is at rest, and a call that waits for a slow disk
_AT_REST = frozenset(b"TtZXx")


def check_none() -> None:
    """Raise BlockingIOError when any process runs, or is halted."""
    if _processes():
        raise BlockingIOError(errno.EAGAIN, "there are processes")


def stop_all() -> frozenset[int]:
    """Stop every process; returns those that were stopped already. TimeoutError when they do not come to rest."""
    before = frozenset(pid for pid in _processes() if _states(pid) == {ord("T")})
    start = time.monotonic()
    while True:
        stop_again()
        states = set().union(*(_states(pid) for pid in _processes())) - _AT_REST
        waited = time.monotonic() - start
        if not states or (states == {ord("D")} and waited > _UNINTERRUPTIBLE):
            return before
        if waited > _PATIENCE:
            go_on(before)
            raise TimeoutError(f"its processes did not come to rest within {_PATIENCE:g} s")
        time.sleep(0.0002)


def stop_again() -> None:
    """Stop every process, without waiting for it."""
    with suppress(ProcessLookupError):  # there is none
        os.kill(-1, signal.SIGSTOP)


def go_on(but: frozenset[int]) -> None:
    """Let every process go on but those that somebody inside had stopped."""
    for pid in _processes():  # listed before the first one goes on: none of them is new
        if pid not in but:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _states(pid: int) -> set[int]:
    """The states of a process's threads; none when it has ended."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                found.add(file.read().rpartition(b") ")[2][0])
    return found
