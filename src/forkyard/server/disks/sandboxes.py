"""Disks in the sandboxes of the server: asked for, mounted at each start, held by one alone unless they are shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from forkyard.sandbox import SYSTEM_DIRECTORIES, Feature, Mount, Remounts, Sandbox, SandboxSpec
from forkyard.server.disks.access import disk_with
from forkyard.server.disks.leases import Leases
from forkyard.server.disks.mounting import TARGET, Placed
from forkyard.server.disks.values import SandboxMount
from forkyard.server.envelope import ApiError, not_here
from forkyard.server.sandboxes import Attendant, Phase
from forkyard.server.wording import refused

if TYPE_CHECKING:
    from forkyard.server.sandboxes import CreateSandbox, Life, Record
    from forkyard.server.serving import Server

RESERVED = SYSTEM_DIRECTORIES | {"opt", "run", "var"}


class Mounts(Attendant):
    """Sees to the disks of every sandbox."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._leases = server.the(Leases)

    async def accept(self, asked: CreateSandbox, name: str) -> Mapping[str, Any]:
        """What is kept of the mounts; each has its path then. ApiError for those that cannot be."""
        mounts = _read(asked.mounts or [])
        if mounts and Feature.MOUNTS not in self._server.provider.features:
            raise not_here(f"disks in sandboxes: the provider {self._server.provider.name} mounts none")
        for mount in mounts:
            placed = self._placed(mount)
            placed.mount()
            await self._leases.wait(placed.use("", ""), placed.wait)
        return {"mounts": [mount.model_dump(exclude_none=True) for mount in mounts]}

    def spec(self, record: Record, spec: SandboxSpec) -> SandboxSpec:
        """With its disks."""
        return replace(spec, mounts=self._mounts(record)) if record.mounts else spec

    async def starting(self, life: Life, sandbox: Sandbox) -> None:
        """Those of its record are what it has from now on, and nobody else holds them."""
        wanted = self._mounts(life.record)
        if isinstance(sandbox, Remounts):
            await sandbox.set_mounts(wanted)
        elif life.record.mounts:
            raise not_here(f"other disks than a sandbox was made with: the provider {self._server.provider.name}")
        self._take(life)

    async def up(self, life: Life) -> None:
        """It holds its disks."""
        self._take(life)

    async def down(self, life: Life) -> None:
        """It lets go of its disks, unless it is paused: then it has them still."""
        if life.record.phase is not Phase.PAUSING:
            self._leases.release(life.id)

    async def gone(self, life: Life) -> None:
        """It holds nothing."""
        self._leases.release(life.id)

    def shown(self, record: Record) -> Mapping[str, Any]:
        """Its disks."""
        return {"mounts": record.mounts}

    def _take(self, life: Life) -> None:
        if life.record.mounts:
            told = f"sandbox {life.record.name!r}"
            self._leases.take([self._placed(mount).use(life.id, told) for mount in _read(life.record.mounts)])

    def _mounts(self, record: Record) -> tuple[Mount, ...]:
        return tuple(self._placed(mount).mount() for mount in _read(record.mounts))

    def _placed(self, mount: SandboxMount) -> Placed:
        disk = disk_with(self._server, mount.disk_id)
        alone = not (mount.read_only or mount.conditional)
        wait = (mount.queue_ms or 0) / 1000
        return Placed(disk, mount.path or TARGET, mount.subdirectory or "", mount.read_only, alone, wait)


def _read(given: list[dict[str, Any]]) -> list[SandboxMount]:
    """The mounts as they were sent, each with its path. Raises ApiError 400."""
    try:
        mounts = [SandboxMount.model_validate(each, strict=True) for each in given]
    except ValidationError as err:
        raise _wrong(f"mounts: {refused(err, 'the list')}") from None
    if len({mount.disk_id for mount in mounts}) < len(mounts):
        raise _wrong("mounts: a disk can be mounted once in a sandbox")
    if len(mounts) > 1 and any(mount.path is None for mount in mounts):
        raise _wrong("mounts: with more than one disk each needs its path")
    placed = [mount.model_copy(update={"path": mount.path or TARGET}) for mount in mounts]
    for mount in placed:
        if (mount.path or "").strip("/").partition("/")[0] in RESERVED:
            raise _wrong(f"mounts: {mount.path} is in a system directory; choose a path such as {TARGET}")
    return placed


def _wrong(text: str) -> ApiError:
    return ApiError(400, text, "invalid_request")
