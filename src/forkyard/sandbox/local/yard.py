"""Where the sandboxes of one process stand: the store, the engine that starts them, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from forkyard.errors import SandboxError
from forkyard.sandbox.keeping import KeepPolicy, KeptDisk
from forkyard.sandbox.local.bounds import boot_limits
from forkyard.sandbox.local.box import Box, Origin
from forkyard.sandbox.local.cgroups import Groups, find_controllers
from forkyard.sandbox.local.diskwatch import DiskWatch, FreeSpace
from forkyard.sandbox.local.engine import PROGRAM, Engine, no_room
from forkyard.sandbox.local.flatten import DEPTH, flatten
from forkyard.sandbox.local.idmap import id_map
from forkyard.sandbox.local.kept import KeptDisks
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.local.usage import Usage, disks_of, shares
from forkyard.sandbox.values import Change, ImageConfig, Limits, Mount
from forkyard.values import MIB, new_id

RESERVE = 2048 * MIB  # what kept disks leave free of the file system they lie on


class Yard:
    """Starts sandboxes over one home, and ends them with itself; everything of it is opened at first use.

    `program` is what Python is started with to be the spawner. With `pids` every sandbox has that bound on its
    processes, for what runs around its guests, and not the one its limits say.
    """

    def __init__(self, home: Path, program: str = PROGRAM, pids: int | None = None) -> None:
        self.home = home
        self.ids = id_map()
        self.controllers = find_controllers()
        self.guests: set[Callable[[], Awaitable[None]]] = set()  # how each open sandbox leaves when the yard is closed
        self._program = program
        self._pids = pids
        self._store: Store | None = None
        self._kept: KeptDisks | None = None
        self._engine: Engine | None = None
        self._groups: Groups | None = None
        self._disk_watch: DiskWatch | None = None
        self._free_space = FreeSpace(home)
        self._starting = asyncio.Lock()
        self._flattening = asyncio.Lock()

    @property
    def many_users(self) -> bool:
        """Whether other users than root exist inside."""
        return self.ids.mode == "range"

    @property
    def store(self) -> Store:
        """The store on disk."""
        if self._store is None:
            self._store = Store(self.home, self.ids)
        return self._store

    @property
    def kept(self) -> KeptDisks:
        """The kept disks of the store."""
        if self._kept is None:
            self._kept = KeptDisks(self.store)
        return self._kept

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        """Forget kept disks that a policy, or the room that is left, does not keep."""
        if new := self.kept.unmeasured():
            answer = await (await self.engine()).errand("measure", disks=sorted({d for one in new for d in one.disks}))
            sizes = answer["bytes"]
            self.kept.set_sizes({one.box: sum(sizes.get(disk, 0) for disk in one.disks) for one in new})
        gone = self.kept.prune(policy, self._free_space.bytes - RESERVE)
        if gone:
            self.purge()
        return gone

    async def engine(self) -> Engine:
        """The engine, started anew if its spawner has died."""
        async with self._starting:
            if self._engine is not None and not self._engine.alive:
                await self._engine.close()
                self._engine = None
            if self._engine is None:
                self._groups = self._groups or Groups(self.controllers, self.store.engine)
                self._engine = await Engine.start(self.store.home, self.ids, self._groups, self._program)
            return self._engine

    @property
    def shifted_usr(self) -> bool | None:
        """Whether files of the machine's /usr belong to the sandboxes' root; None while no engine runs."""
        return None if self._engine is None else self._engine.shifted_usr

    async def launch(
        self,
        origin: Origin,
        name: str | None,
        config: ImageConfig,
        limits: Limits,
        *,
        mounts: tuple[Mount, ...] = (),
        copied: str | None = None,
    ) -> tuple[Box, Live]:
        """A new running sandbox on the disks of an origin.

        With `copied`, a disk over them that nobody writes to meanwhile, a copy of that comes on top.
        """
        if copied is None and origin.box is not None:
            origin = (await self.shallow(origin.box)).origin
        box = self.store.add_running(origin, new_id(), name, config, mounts=mounts, snapshot=copied is not None)
        try:
            if copied is not None:
                engine = await self.engine()
                await engine.errand("merge", disks=[copied], base=None, host=origin.host, to=box.stack[0])
                box = await self.shallow(box)
            return box, await self.boot(box, limits)
        except BaseException:
            self.store.remove(box)
            raise

    async def shallow(self, box: Box) -> Box:
        """The same box, which does not run yet, on no more disks than are good for it."""
        if len(box.stack) <= DEPTH:
            return box
        async with self._flattening:
            now = self.store.now(box)
            return await flatten(self.store, await self.engine(), now) if len(now.stack) > DEPTH else now

    async def boot(self, box: Box, limits: Limits) -> Live:
        """Bring up PID 1 of a box whose row says "running". EngineLost when the machine has no room for it."""
        try:
            return await self._boot(box, limits)
        except OSError as err:
            raise no_room(err) from err

    async def _boot(self, box: Box, limits: Limits) -> Live:
        if self._pids is not None:
            limits = replace(limits, pids=self._pids)
        engine = await self.engine()
        self._free_space.check()
        live = await engine.take()
        try:
            live.group.limit_pids(limits)
            if limits.cpus is not None or limits.memory_mb is not None:
                await live.limit_use(limits)
            if box.mounts:
                await engine.hand_over(live, box.mounts)
            await live.boot(
                {
                    "disk": box.disk,
                    "stack": list(box.stack),
                    "host": box.host,
                    "hostname": box.id[:12],
                    **boot_limits(limits, self.controllers),
                }
            )
            self.bound_disk(engine, live, box, limits.disk_mb)
        except BaseException:
            await live.kill("it could not be set up")
            raise
        return live

    def bound_disk(self, engine: Engine, live: Live, box: Box, limit_mb: int | None) -> None:
        """Bound what a box that runs writes to its disk from now on."""
        if limit_mb is not None and box.disk is not None:
            live.watch_disk(self._watch(engine), box.disk, limit_mb)
        else:
            live.unwatch_disk()

    def _watch(self, engine: Engine) -> DiskWatch:
        if self._disk_watch is None or not self._disk_watch.alive:
            self._disk_watch = engine.start_disk_watch()
        return self._disk_watch

    async def find_changes(self, box: Box) -> list[Change]:
        """What the disks a sandbox wrote change of those it started from."""
        written = [*([box.disk] if box.disk else []), *box.stack[: box.own]]
        engine = await self.engine()
        answer = await engine.errand("changes", disks=written, base=list(box.stack[box.own :]), host=box.host)
        return [Change(path, kind, regular) for path, kind, regular in answer["changes"]]

    async def usage(self) -> list[Usage]:
        """The room each sandbox and image takes on disk: of its own, and shared with others."""
        boxes = [*self.store.all("sandbox"), *self.store.all("image")]
        disks = sorted({disk for box in boxes for disk in disks_of(box)})
        answer = await (await self.engine()).errand("measure", disks=disks)
        return shares(boxes, answer["bytes"], self.store.all("kept"))

    def forget(self, box: Box) -> None:
        """Drop the row and the disk of an image, or of a sandbox that has ended."""
        self.store.remove(box)
        self.purge()

    def purge(self) -> None:
        """Have the trash emptied, if there is an engine to do it; the next one does it otherwise."""
        if self._engine is not None:
            self._engine.purge()

    async def vacate(self) -> None:
        """End every sandbox this process runs; stopped named ones stay."""
        for leave in list(self.guests):
            with suppress(SandboxError):
                await leave()
        self.guests.clear()

    async def close(self) -> None:
        """Vacate it, and end the engine."""
        settling = None if self._kept is None else asyncio.ensure_future(asyncio.to_thread(self._kept.settle))
        await self.vacate()
        if self._disk_watch is not None:
            self._disk_watch.close()
            self._disk_watch = None
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        if self._kept is not None and settling is not None:
            with suppress(SandboxError):  # then they are good until the machine is restarted
                await settling
                self._kept.settled()
        self._kept = None
        if self._store is not None:
            self._store.close(tidy=not self.controllers.groups_of(self._store.engine))
            self._store = self._groups = None
