"""What exists only while a sandbox runs: its PID 1, the socket to it, its control groups."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from forkyard.errors import SandboxError
from forkyard.sandbox.local.cgroups import Group
from forkyard.sandbox.local.channel import Channel
from forkyard.sandbox.local.commands import Commands
from forkyard.sandbox.local.diskwatch import DiskWatch
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import EndedBy, Limits


class Live:
    """A PID 1 in namespaces of its own: blank until `boot` gives it a disk, dead after `kill`."""

    def __init__(self, pid: int, pidfd: int, sock: socket.socket, group: Group) -> None:
        self.pid, self.group = pid, group
        self._pidfd = pidfd
        self._disk_kills = self._output_kills = 0
        self._unwatch: Callable[[], None] = lambda: None
        self._clearing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self.channel = Channel(sock, self._ended)
        self.commands = Commands(self.channel, self._give_up)
        self._loop.add_reader(pidfd, self._died)

    @property
    def alive(self) -> bool:
        """Whether PID 1 still runs, as far as is known."""
        return self.channel.ended is None

    async def warm(self) -> None:
        """Have it answer once before it is needed: the first request costs it most, in pages to be copied."""
        await self.channel.request("ping")

    async def boot(self, spec: dict[str, Any]) -> None:
        """Give it its disk, and close its walls; SandboxError says why it could not."""
        try:
            await self.channel.request("boot", **spec)
        except (OSError, ValueError) as err:
            raise SandboxError(f"a sandbox could not be set up: {err}") from err

    async def limit_use(self, limits: Limits) -> None:
        """Bound its processor time and memory; a thread does it, since the kernel may take a while to move PID 1."""
        try:
            await asyncio.to_thread(self.group.limit_use, limits, self.pid)
        except OSError as err:
            raise SandboxError(f"a sandbox's control groups could not be set: {err}") from err

    def watch_disk(self, watch: DiskWatch, disk: str, limit_mb: int) -> None:
        """Bound what it writes to its disk."""
        watch.add(disk, self.pid, limit_mb, self._disk_over)
        self._unwatch = lambda: watch.forget(disk)

    def _disk_over(self, act: str) -> None:
        self._disk_kills += 1
        if act == "kill":
            self._clear_soon()
        else:
            lost, full = "nobody watches its disk any more", "it wrote far more to its disk than it may"
            self._give_up(lost if act == "lost" else full)

    def bound_output(self, allowance: Allowance) -> None:
        """Bound what its commands write."""
        self.commands.allowance = allowance
        allowance.over = self._output_over

    def _output_over(self) -> None:
        if self._clearing is None or self._clearing.done():
            self._output_kills += 1
            self._clear_soon()

    def _clear_soon(self) -> None:
        self._clearing = self._loop.create_task(self._cleared())

    async def _cleared(self) -> None:
        with suppress(SandboxError, OSError):  # it is gone already
            await self.clear()

    async def clear(self) -> None:
        """Kill every process but PID 1."""
        await self.channel.request("clear")

    @property
    def kills(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits."""
        return {"oom": self.group.memory_kills(), "disk": self._disk_kills, "output": self._output_kills}

    async def is_quiet(self) -> bool:
        """Whether no process but PID 1 is there."""
        try:
            await self.channel.request("quiet")
        except BlockingIOError:
            return False
        return True

    async def halt(self) -> None:
        """Bring every process but PID 1 to a halt; SandboxError when they do not come to rest."""
        try:
            await self.channel.request("halt")
        except OSError as err:
            raise SandboxError(f"the sandbox cannot be halted: {err.strerror or err}") from err

    async def go(self) -> None:
        """Let go on what `halt` halted."""
        await self.channel.request("go")

    def _ended(self) -> None:
        self.commands.close()

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
