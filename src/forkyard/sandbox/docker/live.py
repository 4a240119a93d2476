"""What exists only while a container runs: the socket to its PID 1, and its control group."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from forkyard.errors import SandboxError
from forkyard.sandbox.docker.engine import Engine
from forkyard.sandbox.local.cgroups import ROOT, count_of
from forkyard.sandbox.local.channel import Channel
from forkyard.sandbox.local.commands import Commands
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import EndedBy


class Live:
    """A running container whose PID 1 has called. It ends with the socket to it."""

    def __init__(self, engine: Engine, container: str, sock: socket.socket, memory: Path | None) -> None:
        self._engine, self.container, self._memory = engine, container, memory
        self._output_kills = 0
        self._clearing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.channel = Channel(sock, self._ended)
        self.commands = Commands(self.channel, self._give_up)

    async def boot(self, spec: dict[str, Any]) -> None:
        """Have its walls closed; SandboxError says why they could not be."""
        try:
            await self.channel.request("boot", **spec)
        except (OSError, ValueError) as err:
            raise SandboxError(f"a container could not be set up: {err}") from err

    def bound_output(self, allowance: Allowance) -> None:
        """Bound what its commands write."""
        self.commands.allowance = allowance
        allowance.over = self._output_over

    def _output_over(self) -> None:
        if self._clearing is None or self._clearing.done():
            self._output_kills += 1
            self._clearing = asyncio.get_running_loop().create_task(self._cleared())

    async def _cleared(self) -> None:
        with suppress(SandboxError, OSError):  # it is gone already
            await self.channel.request("clear")

    @property
    def kills(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits."""
        return {"oom": self._memory_kills(), "output": self._output_kills}

    def _memory_kills(self) -> int:
        if self._memory is not None:
            with suppress(OSError):  # the container has just ended
                return count_of("oom_kill", self._memory.read_text())
        return 0

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
            raise SandboxError(f"the container's processes cannot be halted: {err.strerror or err}") from err

    async def go(self) -> None:
        """Let go on what `halt` halted."""
        await self.channel.request("go")

    def _ended(self) -> None:
        self.commands.close()

    async def kill(self, why: str) -> None:
        """End everything inside; returns when all of it is gone.

        By the Engine: a PID 1 whose socket closes ends by itself, in a way that tells a sweep of a dead owner.
        """
        try:
            await killed(self._engine, self.container)
        finally:
            self.channel.end(why)

    def _give_up(self, why: str) -> None:
        self.channel.end(why)
        self._ending = asyncio.get_running_loop().create_task(self._killed())

    async def _killed(self) -> None:
        with suppress(SandboxError):  # the Engine is gone as well
            await killed(self._engine, self.container)


async def killed(engine: Engine, container: str) -> None:
    """Kill a container and wait for its end; one that does not run, or is not there, stays as it is."""
    for path in ("kill", "wait"):
        await engine.call("POST", f"/containers/{container}/{path}", missing_ok=True, conflict_ok=True)


def memory_file(pid: int) -> Path | None:
    """The file that counts what the kernel killed for lack of memory, of the control group a process is in."""
    try:
        rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/") / "memory.oom_control"
    for _, controllers, path in rows:
        if controllers == "":
            return ROOT / path.lstrip("/") / "memory.events"
    return None
