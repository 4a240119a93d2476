"""One sandbox of the local provider, as the host process holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.held.sandbox import HeldSandbox
from forkyard.sandbox.local.apart import ApartSandbox, stand_apart
from forkyard.sandbox.local.bounds import boot_limits
from forkyard.sandbox.local.box import Box, Origin
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.nameserver import NameServer
from forkyard.sandbox.local.outlet import LocalOutlet
from forkyard.sandbox.local.surviving import let_survive
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.values import Change, ImageConfig, Limits, Mount, SandboxInfo


class LocalSandbox(HeldSandbox[Live]):
    """A `Sandbox` over Linux namespaces: a box of a yard, and what lives of it while it runs."""

    def __init__(self, yard: Yard, box: Box, limits: Limits, live: Live | None) -> None:
        super().__init__(box.config, limits.output_mb, LocalOutlet(live.channel if live else None), live)
        self._yard = yard
        self.box = box
        self.limits = limits
        self._name_server = NameServer()
        yard.guests.add(self._leave)

    @property
    def id(self) -> str:
        """The store's identifier."""
        return self.box.id

    @property
    def info(self) -> SandboxInfo:
        """The store's row."""
        return replace(self.box.info, state="paused") if self._paused else self.box.info

    def _check_user(self, user: str) -> None:
        if user and not self._yard.many_users:
            raise ValueError(
                f"this provider runs commands as root only, not as {user!r}: it was started by an ordinary user "
                "without subordinate ids (install uidmap and add a range to /etc/subuid and /etc/subgid)"
            )

    async def _furnish(self) -> None:
        """Have names resolved where the network does it."""
        await super()._furnish()
        await self._name_server.follow(self, self._outlet.name_server)

    async def _leave_network(self, live: Live) -> None:
        """Put back what the network replaced on the disk, when nothing runs any more that could be in the way."""
        if self._name_server.before is not None:
            await live.clear()
            if self._paused:
                await live.go()
                self._paused = False
            await self._name_server.follow(self, None)

    async def fork(self, name: str | None = None) -> LocalSandbox:
        """A running copy of this sandbox, whatever its state (see the protocol)."""
        forked = await self._forked(name)
        return await forked.on_network(self._outlet.network)

    async def _forked(self, name: str | None) -> LocalSandbox:
        self._open_still()
        if self._live is None:
            return await self._fork_of(self.box, name)
        return await self._turns.whole(lambda: self._copy(name), unwanted=lambda fork: fork.close())

    async def _copy(self, name: str | None) -> LocalSandbox:
        self._open_still()
        if self._live is None:
            return await self._fork_of(self.box, name)
        async with self._halted(self._live):
            forked = await self._fork_of(self.box, name, copied=self.box.disk)
        forked._name_server = NameServer(self._name_server.before)
        return forked

    async def _fork_of(self, box: Box, name: str | None, copied: str | None = None) -> LocalSandbox:
        forked = await launched(self._yard, box.origin, name, box.config, self.limits, mounts=box.mounts, copied=copied)
        if self.box.survivor is not None:
            forked.survive()
        return forked

    def survive(self) -> None:
        """Outlive the process that runs it from now on."""
        self.box = let_survive(self._yard.store, self.box, self.limits)

    async def apart(self, own: Sequence[str]) -> ApartSandbox | None:
        """The same machine for commands that those running in it have no hold on (see `StandsApart`)."""
        return await self._turns.whole(lambda: self._apart(own), unwanted=_closed)

    async def _apart(self, own: Sequence[str]) -> ApartSandbox | None:
        beneath = self._acting()
        rlimits = boot_limits(self.limits, self._yard.controllers)["rlimits"]
        live = await stand_apart(await self._yard.engine(), beneath, own, rlimits)
        return None if live is None else ApartSandbox(self, live, self._allowance)

    async def set_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Have other mounts from the next start on (see `Remounts`)."""
        async with self._turns.one:
            self._open_still()
            if self._live is not None:
                raise SandboxError(f"sandbox {self.id[:12]} is running: stop it before it gets other mounts")
            if mounts != self.box.mounts:
                self.box = self._yard.store.set_mounts(self.box, mounts)

    async def bound_disk(self, disk_mb: int | None) -> None:
        """Have another bound of what it writes to its disk (see `BoundsDisk`)."""
        async with self._turns.one:
            self._open_still()
            self.limits = replace(self.limits, disk_mb=disk_mb)
            if self._live is not None:
                self._yard.bound_disk(await self._yard.engine(), self._live, self.box, disk_mb)
            if self.box.survivor is not None:
                self.survive()

    async def changes(self) -> list[Change]:
        """What differs from the state this sandbox started from (see the protocol)."""
        async with self._turns.one:
            self._open_still()
            found = await self._yard.find_changes(self._yard.store.now(self.box))
            return [change for change in found if not self._name_server.owns(change.path)]

    async def pristine(self) -> LocalSandbox:
        """A new running sandbox in the state this one started from."""
        async with self._turns.one:
            self._open_still()
            box = self._yard.store.now(self.box)
            start = Origin(box.image, box.stack[box.own :], box.host)
            return await launched(self._yard, start, None, box.config, self.limits)

    async def _stop(self) -> None:
        self._open_still()
        if self._live is None:
            return
        with suppress(SandboxLost):  # it ended by itself: its disk is as it left it
            await self._leave_network(self._live)
        await self._live.kill("it was stopped")
        await self._outlet.close()
        if self.box.lasts:  # it can outlive this process, and then has to outlive the machine's power as well
            await asyncio.to_thread(self._yard.store.settle)
        self.box = self._yard.store.set_stopped(self.box)
        self._live, self._paused = None, False

    async def _start(self) -> None:
        self._open_still()
        if self._live is not None:
            return
        self.box = await self._yard.shallow(self.box)
        running = self._yard.store.set_running(self.box)
        try:
            self._live = await self._yard.boot(running, self.limits)
        except BaseException:
            self.box = self._yard.store.never_ran(running)
            raise
        self.box = running
        self._bound_output()
        await self._outlet.open(self._live.channel)
        await self._follow_network()

    async def _close(self) -> None:
        async with self._turns.one:
            if self._live is not None:
                await self._live.kill("it was closed")
                await self._outlet.close()
                self._live = None
            self._yard.guests.discard(self._leave)
            self._yard.forget(self.box)

    async def _leave(self) -> None:
        """The provider is closed: a stopped sandbox with a name stays."""
        async with self._turns.one:  # until what was begun is done
            pass
        if self.box.survivor is not None:
            await self.stop()
        elif self.box.name is None or self._live is not None:
            await self.close()


async def _closed(apart: ApartSandbox | None) -> None:
    if apart is not None:
        await apart.close()


async def launched(
    yard: Yard,
    origin: Origin,
    name: str | None,
    config: ImageConfig,
    limits: Limits,
    *,
    mounts: tuple[Mount, ...] = (),
    copied: str | None = None,
) -> LocalSandbox:
    """A new running sandbox on the disks of an origin (see `Yard.launch`)."""
    box, live = await yard.launch(origin, name, config, limits, mounts=mounts, copied=copied)
    return LocalSandbox(yard, box, limits, live)
