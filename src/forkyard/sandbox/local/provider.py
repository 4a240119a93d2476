"""The local provider: Linux namespaces over overlayfs, driven from Python. No daemon, no program but Python."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox.common import default_home
from forkyard.sandbox.findings import Finding
from forkyard.sandbox.keeping import KeepPolicy, KeptDisk, keep_policy, told
from forkyard.sandbox.local.bounds import limit_features
from forkyard.sandbox.local.box import SCRATCH, Origin
from forkyard.sandbox.local.examine import examine, shifted_usr
from forkyard.sandbox.local.hostimage import HOST, HostImage
from forkyard.sandbox.local.mounts import check_sources
from forkyard.sandbox.local.sandbox import LocalSandbox, launched
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.local.surviving import as_found, taken_over
from forkyard.sandbox.local.sweep import sweep, sweep_unused
from forkyard.sandbox.local.usage import Usage
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.promises import check_spec
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.values import NETWORKED, Feature, ImageConfig, ImageInfo, Limits, SandboxInfo, SandboxSpec

_NOTHING = ImageConfig()


class YardProvider(ABC):
    """What every provider over a yard does. Use it as an async context manager."""

    name: str

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self._host = HostImage(yard)

    @property
    @abstractmethod
    def features(self) -> frozenset[Feature]:
        """What is promised on this machine."""

    async def findings(self) -> list[Finding]:
        """What `forkyard doctor` says of this machine."""
        found = await examine(self, self.yard.home, self.yard.many_users, self.yard.controllers)
        if os.getuid() == 0 and self.yard.shifted_usr is not None:
            found.append(shifted_usr(self.yard.shifted_usr))
        if self.yard.shifted_usr is not None:  # an engine runs, so the store can be read
            found.append(Finding("kept disks", True, told(self.yard.kept.all(), keep_policy())))
        return found

    @property
    def store(self) -> Store:
        """The store on disk."""
        return self.yard.store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A running sandbox from an image (see the protocol)."""
        check_spec(self.name, spec, self.features)
        check_sources(spec.mounts)
        origin, image = await self._source(spec.image)
        config = replace(
            image,
            env={**image.env, **spec.env},
            workdir=spec.workdir or image.workdir or "/",
            user=image.user if spec.user is None else spec.user,
        )
        sandbox = await launched(self.yard, origin, spec.name, config, spec.limits, mounts=spec.mounts)
        if spec.survives:
            sandbox.survive()
        return await sandbox.on_network(spec.network)

    async def open(self, id_or_name: str) -> Sandbox:
        """A stopped sandbox kept earlier (see the protocol)."""
        box = self.store.find("sandbox", id_or_name)
        if box is None:
            raise ConfigError(f"there is no sandbox {id_or_name!r}; `forkyard sandbox ls` lists them")
        if as_found(self.store, box).state != "stopped":
            raise ConfigError(f"sandbox {id_or_name!r} is running in another process")
        box = await taken_over(self.yard, box)
        self.store.touch(box)
        return LocalSandbox(self.yard, box, box.survivor or Limits(), None)

    async def sandboxes(self) -> list[SandboxInfo]:
        """Every sandbox of the store."""
        return [as_found(self.store, box).info for box in self.store.all("sandbox")]

    async def images(self) -> list[ImageInfo]:
        """Every image of the store."""
        return [box.image_info for box in self.store.all("image")]

    async def image(self, name: str) -> ImageInfo | None:
        """One image; "scratch" and "host" always exist."""
        if name == SCRATCH.image:
            return ImageInfo(name, _NOTHING, 0.0)
        box = await self._host.box() if name == HOST else self.store.find("image", name)
        return box.image_info if box else None

    async def _source(self, image: str) -> tuple[Origin, ImageConfig]:
        """The disks and the configuration of an image; ConfigError when there is none."""
        if image == SCRATCH.image:
            return SCRATCH, _NOTHING
        box = await self._host.box() if image == HOST else self.store.find("image", image)
        if box is None:
            raise ConfigError(
                f"there is no image {image!r}: import one with `forkyard image import ARCHIVE {image}`, "
                "or use this machine's own /usr with `--base host`"
            )
        return box.origin, box.config

    async def commit(self, sandbox: Sandbox, name: str, config: ImageConfig) -> ImageInfo:
        """Seal the disk of a stopped sandbox as an image."""
        if not isinstance(sandbox, LocalSandbox) or sandbox.info.state != "stopped":
            raise SandboxError(f"sandbox {sandbox.id[:12]} must be stopped before it becomes the image {name!r}")
        if name == SCRATCH.image:
            raise ConfigError(f"{name!r} is not a name an image can have")
        await asyncio.to_thread(self.store.settle)
        return self.store.put_image(name, sandbox.box, config).image_info

    async def remove_image(self, name: str) -> None:
        """Forget an image."""
        box = self.store.find("image", name)
        if box is None:
            raise ConfigError(f"there is no image {name!r}; `forkyard image ls` lists them")
        self.yard.forget(box)

    async def prune_images(self, prefix: str) -> list[str]:
        """Forget the images of a prefix that nothing else stands on."""
        names = self.store.prune_images(prefix)
        if names:
            self.yard.purge()
        return names

    async def usage(self) -> list[Usage]:
        """The room each sandbox and image takes on disk: of its own, and shared with others."""
        return await self.yard.usage()

    async def sweep_unused(self, older_than: float) -> list[str]:
        """Remove stopped named sandboxes that nobody stopped or opened for so many seconds; one sentence for each.

        Never a running one or one with a running fork, never an image.
        """
        return await sweep_unused(self.yard, older_than)

    async def keep_disk(self, sandbox: Sandbox, name: str, without_env: Collection[str] = ()) -> None:
        """Keep the disk of a stopped sandbox (see `KeepsDisks`)."""
        if not isinstance(sandbox, LocalSandbox) or sandbox.info.state != "stopped":
            raise SandboxError(f"sandbox {sandbox.id[:12]} must be stopped before its disk can be kept")
        self.yard.kept.put(name, sandbox.box, without_env)

    async def from_kept(self, name: str, spec: SandboxSpec) -> Sandbox:
        """A running sandbox on a fork of a kept disk (see `KeepsDisks`)."""
        check_spec(self.name, spec, self.features)
        check_sources(spec.mounts)
        box = self.yard.kept.find(name)
        if box is None:
            raise ConfigError(f"there is no kept disk {name!r}: it was never kept, or was pruned")
        config = replace(box.config, env={**box.config.env, **spec.env}, workdir=spec.workdir or box.config.workdir)
        sandbox = await launched(self.yard, box.origin, spec.name, config, spec.limits, mounts=spec.mounts)
        return await sandbox.on_network(spec.network)

    async def kept_disks(self) -> list[KeptDisk]:
        """All that can be had, oldest first."""
        return self.yard.kept.all()

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        """Forget those that a policy does not keep (see `KeepsDisks`)."""
        return await self.yard.prune_kept(policy)

    async def sweep(self) -> list[str]:
        """Remove what dead owners left behind (see the protocol)."""
        return await sweep(self.yard)

    async def close(self) -> None:
        """End every sandbox this process runs; stopped named ones stay."""
        await self.yard.close()


class LocalProvider(YardProvider):
    """Sandboxes on this machine. `home` defaults to FORKYARD_HOME."""

    name = "local"

    def __init__(self, home: Path | None = None) -> None:
        super().__init__(Yard(home or default_home()))

    @property
    def features(self) -> frozenset[Feature]:
        """What this user may promise on this machine."""
        kept = {
            Feature.ISOLATED,
            Feature.NO_NETWORK,
            *NETWORKED,
            Feature.IMAGES,
            Feature.FORK,
            Feature.FORK_RUNNING,
            Feature.PAUSE,
            Feature.SURVIVES,
            Feature.CHANGES,
            Feature.MOUNTS,
            Feature.PROCESSES,
            Feature.TERMINALS,
        }
        if self.yard.many_users:
            kept.add(Feature.USERS)
        return frozenset(kept | limit_features(self.yard.controllers))
