"""The sandbox under a life, as the provider has it, and what every attendant is told when it comes up and goes down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from forkyard.sandbox import Provider, Sandbox
from forkyard.server.sandboxes.attendants import Attendants
from forkyard.server.sandboxes.moments import Moments
from forkyard.server.sandboxes.shutdown import end_processes

if TYPE_CHECKING:
    from forkyard.server.sandboxes.life import Life


class Body:
    """One life's. A change that fails leaves it in the state `sandbox.info` tells, and attendants told of that."""

    def __init__(self, life: Life, provider: Provider, attendants: Attendants) -> None:
        self.sandbox: Sandbox | None = None  # once it was made, or opened
        self.moments = Moments(life.record.box_name)
        self._life = life
        self._provider = provider
        self._attendants = attendants
        self._opening = asyncio.Lock()

    async def opened(self) -> Sandbox:
        """The sandbox, whatever its state. Raises ConfigError when the provider has it no more."""
        async with self._opening:
            if self.sandbox is None:
                record = self._life.record
                self.sandbox = await self._provider.open(record.box or record.box_name)
            return self.sandbox

    async def make(self, making: Callable[[], Awaitable[Sandbox]], made: Callable[[Sandbox], None]) -> None:
        """Have it made; `made` is called with it before anybody else is told. When this fails, there is none."""
        sandbox = await making()
        try:
            self.sandbox = sandbox
            made(sandbox)
            await self._come_up()
        except BaseException:
            self.sandbox = None
            await self._go_down()
            await sandbox.close()
            raise

    async def start(self) -> None:
        """Start it on its disk; of one that is paused, processes and memory are given up."""
        sandbox = await self.opened()
        await self.moments.keep(self._life.record.checkpoint, sandbox)
        if sandbox.info.state != "stopped":
            await sandbox.stop()
        try:
            for attendant in self._attendants:
                await attendant.starting(self._life, sandbox)
            await sandbox.start()
            await self._come_up()
        except BaseException:
            await self._go_down()
            await sandbox.stop()
            raise

    async def resume(self) -> None:
        """Let it go on."""
        sandbox = await self.opened()
        await self.moments.keep(self._life.record.checkpoint, sandbox)
        await sandbox.resume()
        try:
            await self._come_up()
        except BaseException:
            await self._go_down()
            await sandbox.pause()
            raise

    async def pause(self) -> None:
        """Bring it to a halt."""
        sandbox = await self.opened()
        await self._go_down()
        try:
            await sandbox.pause()
        except BaseException:
            await self._come_up()
            raise

    async def stop(self) -> None:
        """Have its processes end, and seal its disk."""
        sandbox = await self.opened()
        await self._go_down()
        if sandbox.info.state == "running":
            await end_processes(sandbox)
        await sandbox.stop()

    async def seal(self) -> None:
        """Seal the disk of one that has ended by itself."""
        await self._go_down()
        await (await self.opened()).stop()

    async def close(self) -> None:
        """End it for good, if there is one still."""
        await self.moments.drop_all()
        box = self._life.record.box
        if box is None:
            return
        if self.sandbox is not None or any(info.id == box for info in await self._provider.sandboxes()):
            await (await self.opened()).close()

    async def gone(self) -> None:
        """Tell attendants that nothing of it is left."""
        for attendant in self._attendants:
            await attendant.gone(self._life)

    async def _come_up(self) -> None:
        for attendant in self._attendants:
            await attendant.up(self._life)

    async def _go_down(self) -> None:
        for attendant in reversed(self._attendants):
            await attendant.down(self._life)
