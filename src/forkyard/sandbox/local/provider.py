"""The local provider: Linux namespaces over overlayfs, driven from Python. No daemon, no program but Python."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.common import default_home
from forkyard.sandbox.findings import Finding
from forkyard.sandbox.limits import check_limits
from forkyard.sandbox.local import hostimage
from forkyard.sandbox.local.bounds import boot_limits, limit_features
from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.cgroups import Groups, find_controllers, remove_group
from forkyard.sandbox.local.diskwatch import DiskWatch, FreeSpace
from forkyard.sandbox.local.engine import PROGRAM, Engine, id_map
from forkyard.sandbox.local.examine import examine, shifted_usr
from forkyard.sandbox.local.flatten import DEPTH, flatten
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.sandbox import LocalSandbox
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.local.usage import Usage, disks_of, shares
from forkyard.sandbox.protocol import Change, Feature, ImageConfig, ImageInfo, Limits, Sandbox, SandboxInfo, SandboxSpec
from forkyard.values import new_id

SCRATCH = "scratch"
_NOTHING = ImageConfig()
_SCRATCH_BOX = Box("", "image", SCRATCH, "stopped", SCRATCH, None, 0.0, None, None, False, _NOTHING, ())


class LocalProvider:
    """Sandboxes on this machine. `home` defaults to FORKYARD_HOME. Use it as an async context manager."""

    name = "local"

    def __init__(self, home: Path | None = None) -> None:
        self._home = home or default_home()
        self._ids = id_map()
        self.many_users = self._ids.mode == "range"
        self._controllers = find_controllers()
        self._program = PROGRAM
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._groups: Groups | None = None
        self._disk_watch: DiskWatch | None = None
        self._free_space = FreeSpace(self._home)
        self._starting = asyncio.Lock()
        self._making_host = asyncio.Lock()
        self._flattening = asyncio.Lock()
        self._host_name: str | None = None
        self._open: set[LocalSandbox] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def features(self) -> frozenset[Feature]:
        """What this user may promise on this machine."""
        kept = {
            Feature.ISOLATED,
            Feature.NO_NETWORK,
            Feature.ALLOWLIST,
            Feature.PUBLIC_NETWORK,
            Feature.LIVE_NETWORK,
            Feature.LISTEN,
            Feature.CONNECT,
            Feature.IMAGES,
            Feature.FORK,
            Feature.FORK_RUNNING,
            Feature.PAUSE,
            Feature.CHANGES,
        }
        if self.many_users:
            kept.add(Feature.USERS)
        return frozenset(kept | limit_features(self._controllers))

    async def findings(self) -> list[Finding]:
        """What `forkyard doctor` says of this machine."""
        found = await examine(self, self._home, self.many_users, self._controllers)
        if os.getuid() == 0 and self._engine is not None:
            found.append(shifted_usr(self._engine.shifted_usr))
        return found

    @property
    def store(self) -> Store:
        """The store on disk, opened at first use."""
        if self._store is None:
            self._store = Store(self._home, self._ids)
        return self._store

    async def _running_engine(self) -> Engine:
        async with self._starting:
            if self._engine is not None and not self._engine.alive:
                await self._engine.close()
                self._engine = None
            if self._engine is None:
                self._groups = self._groups or Groups(self._controllers, self.store.engine)
                self._engine = await Engine.start(self.store.home, self._ids, self._groups, self._program)
            return self._engine

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running sandbox from an image (see the protocol)."""
        check_limits(self.name, spec.limits, self.features)
        source = await self._image(spec.image)
        config = replace(
            source.config,
            env={**source.config.env, **spec.env},
            workdir=spec.workdir or source.config.workdir or "/",
            user=source.config.user if spec.user is None else spec.user,
        )
        sandbox = await self.launch(source, spec.name, config, spec.limits)
        return await sandbox.on_network(spec.network)

    async def launch(
        self, source: Box, name: str | None, config: ImageConfig, limits: Limits, *, copy: bool = False
    ) -> LocalSandbox:
        """A running sandbox on the disks of an image or a stopped sandbox.

        With `copy` the source is a sandbox that has a disk of its own now, which nobody writes to: a copy comes on top.
        """
        if not copy:
            source = await self.shallow(source)
        box = self.store.add_running(source, new_id(), name, config, snapshot=copy)
        try:
            if copy:
                await (await self._running_engine()).errand(
                    "merge", disks=[source.disk], base=None, host=source.host, to=box.stack[0]
                )
                box = await self.shallow(box)
            live = await self.boot(box, limits)
        except BaseException:
            self.store.remove(box)
            raise
        sandbox = LocalSandbox(self, box, limits, live)
        self._open.add(sandbox)
        return sandbox

    async def shallow(self, box: Box) -> Box:
        """The same box, which does not run yet, on no more disks than are good for it."""
        if len(box.stack) <= DEPTH:
            return box
        async with self._flattening:
            now = self.store.get(box.id)
            return await flatten(self.store, await self._running_engine(), now) if len(now.stack) > DEPTH else now

    async def boot(self, box: Box, limits: Limits) -> Live:
        """Bring up PID 1 of a box whose row says "running"."""
        engine = await self._running_engine()
        self._free_space.check()
        live = await engine.take()
        try:
            live.group.limit_pids(limits)
            if limits.cpus is not None or limits.memory_mb is not None:
                await live.limit_use(limits)
            await live.boot(
                {
                    "disk": box.disk,
                    "stack": list(box.stack),
                    "host": box.host,
                    "hostname": box.id[:12],
                    **boot_limits(limits, self._controllers),
                }
            )
            if limits.disk_mb is not None and box.disk is not None:
                live.watch_disk(self._watch(engine), box.disk, limits.disk_mb)
        except BaseException:
            await live.kill("it could not be set up")
            raise
        return live

    def _watch(self, engine: Engine) -> DiskWatch:
        if self._disk_watch is None or not self._disk_watch.alive:
            self._disk_watch = engine.start_disk_watch()
        return self._disk_watch

    async def find_changes(self, box: Box) -> list[Change]:
        """What the disks a sandbox wrote change of those it started from."""
        written = [*([box.disk] if box.disk else []), *box.stack[: box.own]]
        answer = await (await self._running_engine()).errand(
            "changes", disks=written, base=list(box.stack[box.own :]), host=box.host
        )
        return [Change(path, kind, regular) for path, kind, regular in answer["changes"]]

    async def usage(self) -> list[Usage]:
        """The room each sandbox and image takes on disk: of its own, and shared with others."""
        boxes = [*self.store.all("sandbox"), *self.store.all("image")]
        disks = sorted({disk for box in boxes for disk in disks_of(box)})
        answer = await (await self._running_engine()).errand("measure", disks=disks)
        return shares(boxes, answer["bytes"])

    def forget(self, sandbox: LocalSandbox) -> None:
        """Called by a sandbox that has ended: drop its row and its disk."""
        self._open.discard(sandbox)
        self.store.remove(sandbox.box)
        if self._engine is not None:
            self._engine.purge()

    async def open(self, id_or_name: str) -> Sandbox:
        """A stopped sandbox kept earlier (see the protocol)."""
        box = self.store.find("sandbox", id_or_name)
        if box is None:
            raise ConfigError(f"there is no sandbox {id_or_name!r}; `forkyard sandbox ls` lists them")
        if box.state != "stopped":
            raise ConfigError(f"sandbox {id_or_name!r} is running in another process")
        self.store.touch(box)
        sandbox = LocalSandbox(self, box, Limits(), None)
        self._open.add(sandbox)
        return sandbox

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox of the store."""
        return [box.info for box in self.store.all("sandbox")]

    async def images(self) -> list[ImageInfo]:
        """Every image of the store."""
        return [box.image_info for box in self.store.all("image")]

    async def image(self, name: str) -> ImageInfo | None:
        """One image; "scratch" and "host" always exist."""
        if name == SCRATCH:
            return _SCRATCH_BOX.image_info
        if name == hostimage.NAME:
            return (await self._image(name)).image_info
        box = self.store.find("image", name)
        return box.image_info if box else None

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """Seal the disk of a stopped sandbox as an image."""
        if not isinstance(sandbox, LocalSandbox) or sandbox.info.state != "stopped":
            raise SandboxError(f"sandbox {sandbox.id[:12]} must be stopped before it becomes the image {name!r}")
        if name == SCRATCH:
            raise ConfigError(f"{name!r} is not a name an image can have")
        await asyncio.to_thread(self.store.settle)
        return self.store.put_image(name, sandbox.box, config).image_info

    async def remove_image(self, name: str) -> None:
        """Forget an image."""
        box = self.store.find("image", name)
        if box is None:
            raise ConfigError(f"there is no image {name!r}; `forkyard image ls` lists them")
        self.store.remove(box)
        if self._engine is not None:
            self._engine.purge()

    async def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix that nothing else stands on."""
        names = self.store.prune_images(prefix)
        if names and self._engine is not None:
            self._engine.purge()
        return names

    async def _image(self, name: str) -> Box:
        if name == SCRATCH:
            return _SCRATCH_BOX
        if name == hostimage.NAME:
            return await self._host()
        box = self.store.find("image", name)
        if box is None:
            raise ConfigError(
                f"there is no image {name!r}: import one with `forkyard image import ARCHIVE {name}`, "
                "or use this machine's own /usr with `--base host`"
            )
        return box

    async def _host(self) -> Box:
        """The image of this machine's /usr, made again when what it repeats of the machine has changed."""
        async with self._making_host:
            if self._host_name is None:
                engine = await self._running_engine()
                archive = await asyncio.to_thread(hostimage.skeleton, not engine.shifted_usr)
                self._host_name = f"host@{hashlib.sha256(archive).hexdigest()[:12]}"
                if self.store.find("image", self._host_name) is None:
                    await self._make_host(self._host_name, archive)
            found = self.store.find("image", self._host_name)
            if found is None:
                self._host_name = None
                raise SandboxError("the image 'host' was removed while it was needed: try again")
            return found

    async def _make_host(self, name: str, archive: bytes) -> None:
        sandbox = await self.launch(_SCRATCH_BOX, None, _NOTHING, Limits())
        try:
            await sandbox.push(archive)
            await sandbox.stop()
            await asyncio.to_thread(self.store.settle)
            self.store.put_image(name, replace(sandbox.box, host=True), hostimage.config())
        finally:
            await sandbox.close()

    async def sweep_unused(self, older_than: float) -> list[str]:
        """Remove stopped named sandboxes that nobody stopped or opened for so many seconds; one sentence for each.

        Never a running one or one with a running fork, never an image.
        """
        unused = self.store.remove_unused(time.time() - older_than)
        (await self._running_engine()).purge()
        return [f"sandbox {box.name}: last used {_days(time.time() - box.used)} ago" for box in unused]

    async def sweep(self) -> list[str]:
        """Remove what dead owners left behind (see the protocol)."""
        done = []
        for box in self.store.abandoned():
            self.store.remove(box)
            done.append(f"{box.kind} {box.name or box.id}: its owner is gone")
        for engine in self.store.dead_engines():
            groups = [group for parent in self._controllers.parents for group in parent.glob(f"{engine}-*")]
            removed = sorted({group.name for group in groups if remove_group(group)})
            done += [f"control group {name}" for name in removed]
            self.store.forget_engine(engine)
        done += [f"disk {disk}: nothing stands on it" for disk in self.store.orphan_disks()]
        (await self._running_engine()).purge()
        return done

    async def close(self) -> None:
        """End every sandbox this process runs; stopped named ones stay."""
        for sandbox in list(self._open):
            if sandbox.info.name is None or sandbox.info.state == "running":
                with suppress(SandboxError):
                    await sandbox.close()
        self._open.clear()
        if self._disk_watch is not None:
            self._disk_watch.close()
            self._disk_watch = None
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        if self._store is not None:
            self._store.close()
            self._store = self._groups = None


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"
