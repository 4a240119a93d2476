"""What exists only while a sandbox runs: its PID 1, the socket to it, its control groups."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from forkyard.errors import SandboxError
from forkyard.sandbox.held.live import HeldLive
from forkyard.sandbox.local.cgroups import Group
from forkyard.sandbox.local.diskwatch import DiskWatch
from forkyard.sandbox.values import EndedBy, Limits, Mount


class Live(HeldLive):
    """A PID 1 in namespaces of its own: blank until `boot` gives it a disk, dead after `kill`."""

    def __init__(self, pid: int, pidfd: int, sock: socket.socket, group: Group) -> None:
        super().__init__(sock)
        self.pid, self.group = pid, group
        self._pidfd = pidfd
        self._disk_kills = 0
        self._unwatch: Callable[[], None] = lambda: None
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._died)

    @property
    def alive(self) -> bool:
        """Whether PID 1 still runs, as far as is known."""
        return self.channel.ended is None

    async def warm(self) -> None:
        """Have it answer once before it is needed: the first request costs it most, in pages to be copied."""
        await self.channel.request("ping")

    async def mount(self, mount: Mount, fd: int, *, bind: bool) -> None:
        """Have the boot mount a directory of the host: `fd` is a mount, or what is to be bound."""
        source = str(mount.source) if bind else None
        await self.channel.request("mount", fd, target=mount.target, source=source, read_only=mount.read_only)

    async def limit_use(self, limits: Limits) -> None:
        """Bound its processor time and memory; a thread does it, since the kernel may take a while to move PID 1."""
        try:
            await asyncio.to_thread(self.group.limit_use, limits, self.pid)
        except OSError as err:
            raise SandboxError(f"a sandbox's control groups could not be set: {err}") from err

    def watch_disk(self, watch: DiskWatch, disk: str, limit_mb: int) -> None:
        """Bound what it writes to its disk."""

        def over(act: str) -> None:
            self._disk_over(act)
            if act == "kill" and self._clearing is not None:
                self._clearing.add_done_callback(lambda _: watch.cleared(disk))

        watch.add(disk, self.pid, limit_mb, over)
        self._unwatch = lambda: watch.forget(disk)

    def unwatch_disk(self) -> None:
        """Bound it no more."""
        self._unwatch()

    def _disk_over(self, act: str) -> None:
        self._disk_kills += 1
        if act == "kill":
            self._clear_soon()
        else:
            lost, full = "nobody watches its disk any more", "it wrote far more to its disk than it may"
            self._give_up(lost if act == "lost" else full)

    @property
    def kills(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits."""
        return {"oom": self.group.memory_kills(), "disk": self._disk_kills, "output": self._output_kills}

    def _died(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.channel.end("its PID 1 ended")
        self._unwatch()
        self.group.remove()
        if not self._dead.done():
            self._dead.set_result(None)

    async def kill(self, why: str) -> None:
        """Kill PID 1, and with it everything inside; returns when all of it is gone."""
        self._give_up(why)
        await asyncio.shield(self._dead)

    def _give_up(self, why: str) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.channel.end(why)
