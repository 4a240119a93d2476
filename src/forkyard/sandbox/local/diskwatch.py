"""Bounds on what sandboxes write to their disks, kept by a watcher beside the spawner.

A quota of the file system would be exact, but needs root, and few file systems have it switched on; a disk in memory
would be exact too, but a task that asks for 10 GB would take them of the machine's memory. So the disks are counted,
the sooner again the nearer they are to their bound (see `inside/watcher.py`), and a sandbox may pass its bound by what
it writes in that time.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forkyard.errors import EngineLost, SandboxError
from forkyard.sandbox.inside import wire
from forkyard.values import MIB

FILES_PER_MB = 256  # one for each 4 KiB, as a small ext4 has
LOW_WATER_MB = 256
LOW_WATER_FILES = 4096
_LOOKED_AFTER = 1.0  # seconds for which a look at the free space holds

OnOver = Callable[[str], None]
"""Called with "kill" or "end" when a disk is over its bound, and with "lost" when nobody watches it any more."""


class DiskWatch:
    """The watcher as seen from the user's process."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._watched: dict[str, OnOver] = {}
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    @classmethod
    def start(cls, control: socket.socket) -> DiskWatch:
        """Have the spawner at the other end of `control` start one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control.sendmsg([b'{"op": "watch"}'], wire.ancillary([theirs.fileno()]))
        except OSError as err:
            ours.close()
            raise EngineLost(f"the watcher of disks cannot be started: {err.strerror}") from err
        finally:
            theirs.close()
        return cls(ours)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked, as far as is known."""
        return self._sock.fileno() >= 0

    def add(self, disk: str, pid: int, limit_mb: int, on_over: OnOver) -> None:
        """Watch the disk of the sandbox whose first process is `pid`."""
        request = {"disk": disk, "pid": pid, "bytes": limit_mb * MIB, "files": limit_mb * FILES_PER_MB}
        try:
            self._sock.send(json.dumps(request).encode())
        except OSError as err:
            raise EngineLost(f"the watcher of disks is gone: {err.strerror}") from err
        self._watched[disk] = on_over

    def cleared(self, disk: str) -> None:
        """Tell that the processes it asked to be killed are dead."""
        if disk in self._watched:
            with suppress(OSError):
                self._sock.send(json.dumps({"cleared": disk}).encode())

    def forget(self, disk: str) -> None:
        """Stop watching a disk."""
        if self._watched.pop(disk, None) is not None:
            with suppress(OSError):
                self._sock.send(json.dumps({"forget": disk}).encode())

    def _readable(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            for on_over in list(self._watched.values()):
                on_over("lost")
            return
        message = json.loads(data)
        if told := self._watched.get(message["disk"]):
            told(message["act"])

    def close(self) -> None:
        """End the watcher."""
        if self.alive:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()


class FreeSpace:
    """Keeps the host's own disk from being filled: below a low-water mark no sandbox is started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._looked = -_LOOKED_AFTER

    @property
    def bytes(self) -> int:
        """How many bytes are left."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def check(self) -> None:
        """Raise SandboxError when too little is left; looks at most once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOKED_AFTER:
            return
        found = os.statvfs(self._directory)
        free = found.f_bavail * found.f_frsize
        if free < LOW_WATER_MB * MIB:
            raise SandboxError(
                f"{self._directory} has {free // MIB} MB left, and sandboxes are started only while there are "
                f"{LOW_WATER_MB} MB: make room (`forkyard sandbox sweep`, `forkyard sandbox rm`), or set FORKYARD_HOME"
            )
        if found.f_files and found.f_favail < LOW_WATER_FILES:  # some file systems do not count them
            raise SandboxError(
                f"the file system of {self._directory} has {found.f_favail} inodes left, and sandboxes are started "
                f"only while there are {LOW_WATER_FILES}: remove files there, or set FORKYARD_HOME"
            )
        self._looked = now
