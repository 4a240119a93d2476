"""What exists only while a sandbox runs: the socket to its PID 1, and the commands it runs."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar

from forkyard.errors import SandboxError
from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.held.commands import Commands
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import EndedBy


class HeldLive(ABC):
    """A PID 1 that answers, and the commands it runs. It ends with the socket to it."""

    NOT_SET_UP: ClassVar[str] = "a sandbox could not be set up"
    NOT_HALTED: ClassVar[str] = "the sandbox cannot be halted"

    def __init__(self, sock: socket.socket) -> None:
        self._output_kills = 0
        self._clearing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.channel = Channel(sock, self._ended)
        self.commands = Commands(self.channel, self._give_up)

    async def boot(self, spec: dict[str, Any]) -> None:
        """Have its walls closed; SandboxError says why they could not be."""
        try:
            await self.channel.request("boot", **spec)
        except (OSError, ValueError) as err:
            raise SandboxError(f"{self.NOT_SET_UP}: {err}") from err

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
    @abstractmethod
    def kills(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits."""

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
            raise SandboxError(f"{self.NOT_HALTED}: {err.strerror or err}") from err

    async def go(self) -> None:
        """Let go on what `halt` halted."""
        await self.channel.request("go")

    def _ended(self) -> None:
        self.commands.close()

    @abstractmethod
    async def kill(self, why: str) -> None:
        """End everything inside; returns when all of it is gone."""

    @abstractmethod
    def _give_up(self, why: str) -> None:
        """End it without waiting: it does not keep what it must."""
