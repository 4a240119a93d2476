"""The watcher: counts what sandboxes have written to their disks, and says when one has written too much.

A child of the spawner, started when the first sandbox with such a bound is, and root of the same user namespace: it
may enter every directory of an upper layer, whoever made it. Messages of its socket (JSON, one a packet):

    in    {"disk": id, "pid": pid, "bytes": n, "files": n}    count this disk from now on; `pid` is its PID 1
    in    {"cleared": id}    what wrote to it is dead: only what is written from now on calls for another kill
    in    {"forget": id}
    out   {"disk": id, "act": "kill"}    it is over its bound, and has grown, or nobody cleared up for a while
    out   {"disk": id, "act": "end"}     it is far over its bound, or nested too deep to be counted

What a guest writes is not trusted: nothing is followed, every directory is opened from the one above it, and a walk
ends as soon as its outcome is known. On xfs, which takes room beyond the end of a file that grows and gives it back
later, as much as it may have taken so is not counted. How soon a disk is counted again depends on how long it would
take to fill what it has left; near its bound that is 20 times a second, but never more than a fifth of a processor.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import stat
import sys
import time
from contextlib import suppress
from typing import Any

from . import kernel

PARTS = ("u", "usr")  # of a disk: the upper layers of the root and, with the machine's /usr, of that
DEEPEST = 1000  # directories inside each other
_FASTEST = 2e9, 1e5  # bytes and files a second that no guest writes faster
_SLACK = 512 << 20, 25_000  # what it may at least be over, if it was too fast to be counted, before it is ended
_SOONEST, _SHARE = 0.05, 5
_ALL = sys.maxsize, sys.maxsize  # bytes and files: no disk holds more
_GRACE = 2.0  # seconds in which a full disk is left to those who clear it up


class Tally:
    """Bytes and number of files, each counted once however many names it has."""

    def __init__(self, most_bytes: float, most_files: float, *, ahead: bool) -> None:
        self._most = most_bytes, most_files
        self._ahead = ahead
        self._linked: set[int] = set()
        self.used = (0, 0)
        self.deep = False

    @property
    def done(self) -> bool:
        """Whether it is known already that there is too much."""
        return self.deep or any(have > most for have, most in zip(self.used, self._most, strict=True))

    def add(self, info: os.stat_result) -> None:
        """Count one file; blocks and not sizes, so that a hole costs nothing."""
        if info.st_nlink != 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in self._linked:
                return
            self._linked.add(info.st_ino)
        taken = info.st_blocks * 512
        if self._ahead and taken > info.st_size and stat.S_ISREG(info.st_mode):
            # Up to twice the file: a guest that takes as much there itself writes three times what it may.
            taken -= min(taken - info.st_size, 2 * info.st_size)
        self.used = (self.used[0] + taken, self.used[1] + 1)

    def add_tree(self, root: str) -> None:
        """Count what lies beneath a directory, if there is one."""
        levels: list[tuple[int, list[str]]] = []  # open directories, and those in each that are still to be counted
        try:
            self._enter(None, root, levels)
            while levels and not self.done:
                fd, names = levels[-1]
                if names:
                    self._enter(fd, names.pop(), levels)
                    self.deep = len(levels) > DEEPEST
                else:
                    os.close(fd)
                    levels.pop()
        finally:
            for fd, _ in levels:
                os.close(fd)

    def _enter(self, above: int | None, name: str, levels: list[tuple[int, list[str]]]) -> None:
        try:
            fd = os.open(name, kernel.REAL_FOLDER, dir_fd=above)
        except (FileNotFoundError, NotADirectoryError):  # removed or replaced meanwhile
            return
        names: list[str] = []
        levels.append((fd, names))
        with os.scandir(fd) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    self.add(info)
                    if stat.S_ISDIR(info.st_mode):
                        names.append(entry.name)
                if self.done:
                    return

    def add_deleted(self, pid: int) -> None:
        """Count files that have no name any more but are held open by descendants of a PID 1."""
        with suppress(OSError):  # it, or one of them, ended meanwhile
            pending = _children(pid)
            mounts = _overlays(pid, *_views(pending)) if pending else set()
            while pending and not self.done:
                process = pending.pop()
                with suppress(OSError):
                    pending += _children(process)
                    for fd in os.listdir(f"/proc/{process}/fd"):
                        self._add_if_deleted(process, fd, mounts)

    def _add_if_deleted(self, process: int, fd: str, mounts: set[bytes]) -> None:
        with suppress(OSError):
            info = os.stat(f"/proc/{process}/fd/{fd}")
            if info.st_nlink == 0 and stat.S_ISREG(info.st_mode) and _mount_of(process, fd) in mounts:
                self.add(info)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


def _views(children: list[int]) -> list[int]:
    """One of them for each mount namespace they stand in: what serves a disk to gVisor has one of its own."""
    found: dict[str, int] = {}
    for child in children:
        with suppress(OSError):
            found[os.readlink(f"/proc/{child}/ns/mnt")] = child
    return [*found.values()]


def _overlays(*pids: int) -> set[bytes]:
    """The numbers of the mounts that a sandbox's disk is.

    Devices would not do: where overlayfs has the machine's /usr from another file system, its files are on others.
    """
    found: set[bytes] = set()
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/mountinfo", "rb") as file:
            found |= {line.split()[0] for line in file if b" - overlay " in line}
    return found


def _mount_of(process: int, fd: str) -> bytes | None:
    with open(f"/proc/{process}/fdinfo/{fd}", "rb") as file:
        return next((line.split()[1] for line in file if line.startswith(b"mnt_id:")), None)


class Disk:
    """One disk under watch."""

    def __init__(self, name: str, pid: int, most: tuple[int, int], *, ahead: bool) -> None:
        self._name = name
        self._ahead = ahead
        self._pid = pid
        self._most = most
        self._told: tuple[int, int] | None = None  # what it held when it was last looked at, while over its bound
        self._again = 0.0
        self._killing = False  # a kill was asked for, and is not done yet: what is written until then is no news
        self.due = 0.0

    def cleared(self) -> None:
        """Its processes are dead: look again at once, from where the next will start."""
        self._killing, self._told, self.due = False, _ALL, 0.0

    def check(self) -> str | None:
        """Count it: what is to be done about it, if anything."""
        started = time.process_time()
        ends = (most + max(most, slack) for most, slack in zip(self._most, _SLACK, strict=True))
        tally = Tally(*ends, ahead=self._ahead)
        for part in PARTS:
            tally.add_tree(f"{self._name}/{part}")
        tally.add_deleted(self._pid)
        now, spent = time.monotonic(), time.process_time() - started
        left = min((most - have) / fast for most, have, fast in zip(self._most, tally.used, _FASTEST, strict=True))
        self.due = now + max(left, _SOONEST, spent * _SHARE)
        return "end" if tally.done else self._judge(tally.used, now)

    def _judge(self, used: tuple[int, int], now: float) -> str | None:
        if not _beyond(used, self._most):
            self._told, self._killing = None, False
        elif self._killing and now < self._again:
            return None
        elif self._told is None or _beyond(used, self._told) or (used == self._told and now > self._again):
            self._told, self._again, self._killing = used, now + _GRACE, True
            return "kill"
        elif used != self._told:  # somebody clears up
            self._told, self._again = used, now + _GRACE
        return None


def _beyond(used: tuple[int, int], most: tuple[int, int]) -> bool:
    return used[0] > most[0] or used[1] > most[1]


def watch(fd: int) -> None:
    """Serve until the socket closes. The current directory is the store's `disks/`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4 * DEEPEST else 4 * DEEPEST, hard))
    sock = socket.socket(fileno=fd)
    disks: dict[str, Disk] = {}
    ahead = kernel.kind_of_file_system(".") == kernel.XFS
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        due = min((disk.due for disk in disks.values()), default=None)
        wait = None if due is None else max(0, (due - time.monotonic()) * 1000)
        if poll.poll(wait):
            data = sock.recv(1 << 16)
            if not data:
                return
            _told(disks, json.loads(data), ahead)
            continue
        for name in [name for name, disk in disks.items() if disk.due <= time.monotonic()]:
            if act := disks[name].check():
                sock.send(json.dumps({"disk": name, "act": act}).encode())


def _told(disks: dict[str, Disk], message: dict[str, Any], ahead: bool) -> None:
    if "forget" in message:
        disks.pop(message["forget"], None)
    elif "cleared" in message:
        if disk := disks.get(message["cleared"]):
            disk.cleared()
    else:
        most = message["bytes"], message["files"]
        disks[message["disk"]] = Disk(message["disk"], message["pid"], most, ahead=ahead)
