"""Every process of every sandbox that was started over a socket, for as long as one may ask for it."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from forkyard.server.envelope import ApiError
from forkyard.server.processes.output import Log, Memory
from forkyard.server.processes.served import ServedProcess
from forkyard.server.processes.values import Start
from forkyard.server.sandboxes import Attendant, Life, Phase

ENDED_KEPT = 256
"""Processes of one sandbox that can still be asked for when they have ended: the ones that ended last."""


class Processes(Attendant):
    """The processes of one server, by sandbox."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._of: dict[str, SandboxProcesses] = {}

    def of(self, life: Life) -> SandboxProcesses:
        """Those of a sandbox."""
        if life.id not in self._of:
            self._of[life.id] = SandboxProcesses(life, self._memory)
        return self._of[life.id]

    async def gone(self, life: Life) -> None:
        """Its sandbox was deleted."""
        if (sandbox := self._of.pop(life.id, None)) is not None:
            await sandbox.leave()

    async def close(self) -> None:
        """Look after no process any more; they end with their sandboxes."""
        for sandbox in list(self._of.values()):
            await sandbox.leave()


class SandboxProcesses:
    """The processes of one sandbox."""

    def __init__(self, life: Life, memory: Memory) -> None:
        self._life = life
        self._memory = memory
        self._processes: dict[str, ServedProcess] = {}
        self._ended: deque[str] = deque()  # those of them that have, in the order they did
        self._attached = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def seat(self) -> Iterator[None]:
        """A place for one who looks on. Raises ApiError when all are taken."""
        limit = self._life.record.max_concurrent_execs
        if self._attached >= limit:
            raise ApiError(
                429,
                f"{limit} processes are attached to in this sandbox already, as many as it may have: let go of one, "
                "or create it with a larger max_concurrent_execs",
                "max_concurrent_execs_reached",
            )
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1

    async def start(self, asked: Start) -> ServedProcess:
        """Start a process. Raises ApiError in a sandbox that does not run, and what `Sandbox.spawn` raises."""
        process = await self._life.sandbox.spawn(asked.command, asked.env, cwd=asked.cwd, terminal=asked.size)
        served = ServedProcess(str(uuid.uuid4()), process, Log(self._memory), self.lost)
        self._processes[served.id] = served
        self._keep(asyncio.create_task(self._live(served, asked.timeout_seconds)))
        return served

    def get(self, process_id: str) -> ServedProcess:
        """A process by its id. Raises ApiError for one that is not there (any more)."""
        served = self._processes.get(process_id)
        if served is None:
            raise ApiError(404, "there is no such process in this sandbox, or it ended long ago", "process_not_found")
        return served

    async def _live(self, served: ServedProcess, timeout: float | None) -> None:
        try:
            await served.live(timeout)
        finally:
            self._ended.append(served.id)
            if len(self._ended) > ENDED_KEPT:
                self._memory.drop(self._processes.pop(self._ended.popleft()).log)

    def lost(self, why: str) -> None:
        """A process met the end of the sandbox: unless that is being brought about, it ended by itself."""
        if self._life.record.phase is Phase.RUNNING:
            self._keep(asyncio.create_task(self._life.lost(why)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def leave(self) -> None:
        """Look after none of them any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for served in self._processes.values():
            self._memory.drop(served.log)
        self._processes.clear()
