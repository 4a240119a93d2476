"""What exists only while a container runs: the socket to its PID 1, and its control group."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from forkyard.errors import SandboxError
from forkyard.sandbox.docker.engine import Engine
from forkyard.sandbox.held.live import HeldLive
from forkyard.sandbox.local.cgroups import ROOT, count_of
from forkyard.sandbox.values import EndedBy


class Live(HeldLive):
    """A running container whose PID 1 has called. It ends with the socket to it."""

    NOT_SET_UP: ClassVar[str] = "a container could not be set up"
    NOT_HALTED: ClassVar[str] = "the container's processes cannot be halted"

    def __init__(self, engine: Engine, container: str, sock: socket.socket, memory: Path | None) -> None:
        super().__init__(sock)
        self._engine, self.container, self._memory = engine, container, memory
        self._ending: asyncio.Task[None] | None = None

    @property
    def kills(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits."""
        return {"oom": self._memory_kills(), "output": self._output_kills}

    def _memory_kills(self) -> int:
        if self._memory is not None:
            with suppress(OSError):  # the container has just ended
                return count_of("oom_kill", self._memory.read_text())
        return 0

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
        self._ending = self._loop.create_task(self._killed())

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
