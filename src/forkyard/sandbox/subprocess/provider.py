"""The subprocess provider."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.errors import ConfigError
from forkyard.sandbox.common import default_home
from forkyard.sandbox.promises import check_spec
from forkyard.sandbox.subprocess.ground import own_user
from forkyard.sandbox.subprocess.processes import kill_tree
from forkyard.sandbox.subprocess.sandbox import SubprocessSandbox, sandbox_marker
from forkyard.sandbox.subprocess.store import Record, Store
from forkyard.sandbox.values import Feature, SandboxInfo, SandboxSpec
from forkyard.values import new_id

IMAGE = "host"


class SubprocessProvider:
    """Sandboxes that are directories and processes of the host: nothing is isolated, limited or walled off.

    `home` is where they are kept, `subprocess` in the directory FORKYARD_HOME unless given.
    """

    name = "subprocess"
    features = frozenset({Feature.FORK, Feature.PROCESSES})

    def __init__(self, home: Path | None = None) -> None:
        self._store = Store(home or default_home() / "subprocess")
        self._boxes: dict[str, SubprocessSandbox] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, spec: SandboxSpec) -> SubprocessSandbox:
        """A new directory. ConfigError for an image or user of another kind than the host's, or a name in use."""
        check_spec(self.name, spec, self.features)
        if spec.image != IMAGE:
            raise ConfigError(f"the subprocess provider has no image {spec.image!r}, only {IMAGE!r}")
        if spec.user is not None and spec.user not in own_user():
            raise ConfigError(f"the subprocess provider runs commands as {own_user()[1]}, not as {spec.user!r}")
        record = Record(
            id=new_id(),
            name=spec.name,
            image=spec.image,
            created=time.time(),
            owner=self._store.owners.own,
            env=dict(spec.env),
            workdir=spec.workdir or "/",
        )
        self._store.add(record)
        return self._adopt(record)

    async def open(self, id_or_name: str) -> SubprocessSandbox:
        """A stopped sandbox kept earlier. ConfigError when there is none of that id or name."""
        record = self._store.find(id_or_name)
        if record is None:
            raise ConfigError(f"there is no sandbox {id_or_name!r}")
        if record.state != "stopped":
            raise ConfigError(f"sandbox {id_or_name!r} is {record.state}; only a stopped one can be opened")
        return self._boxes.get(record.id) or self._adopt(record)

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox under `home`, of other processes too."""
        return [record.info for record in self._store.all()]

    async def sweep(self) -> list[str]:
        """End and remove the sandboxes of processes that are gone, but for stopped ones with a name."""
        removed = []
        for sandbox_id in self._store.orphans():
            kill_tree(sandbox_marker(sandbox_id))
            await asyncio.to_thread(self._store.remove, sandbox_id)
            removed.append(f"removed subprocess sandbox {sandbox_id}, whose owner is gone")
        for owner in self._store.owners.dead():
            self._store.owners.forget(owner)
        return removed

    async def close(self) -> None:
        """End every sandbox of this provider; stopped ones with a name stay."""
        async with AsyncExitStack() as stack:
            stack.callback(self._store.leave)
            for box in self._boxes.values():
                if not box.closed and (box.info.state == "running" or box.info.name is None):
                    stack.push_async_callback(box.close)
            self._boxes = {}

    def _adopt(self, record: Record) -> SubprocessSandbox:
        self._boxes = {key: box for key, box in self._boxes.items() if not box.closed}
        box = self._boxes[record.id] = self._sandbox(record)
        return box

    def _sandbox(self, record: Record) -> SubprocessSandbox:
        return SubprocessSandbox(self._store, record, self._adopt)
