"""One sandbox in a container, as the host process holds it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from forkyard.errors import SandboxError
from forkyard.sandbox.docker.containers import Containers
from forkyard.sandbox.docker.live import Live
from forkyard.sandbox.docker.record import Record
from forkyard.sandbox.held.outlet import Outlet
from forkyard.sandbox.held.sandbox import HeldSandbox
from forkyard.sandbox.values import Change, ImageConfig, Mount, SandboxInfo
from forkyard.values import new_id


class DockerSandbox(HeldSandbox[Live]):
    """A `Sandbox` that is a container. `image` is the id of the image its disk stands on.

    A public network is a door as well: Docker's bridge leads to this machine and its neighbours, and no address of its
    own pool has a container without.
    """

    def __init__(self, containers: Containers, container: str, record: Record, image: str, live: Live | None) -> None:
        config = ImageConfig(record.env, record.workdir, record.user)
        super().__init__(config, record.limits.output_mb, Outlet(live.channel if live else None), live)
        self._containers, self._container, self._record, self._image = containers, container, record, image
        self._template: str | None = None  # the disk of this stopped sandbox, as an image to fork from
        containers.guests.add(self._leave)

    @property
    def id(self) -> str:
        """The container's id."""
        return self._container

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def info(self) -> SandboxInfo:
        """What a listing would say of it."""
        state = "stopped" if self._live is None else "paused" if self._paused else "running"
        return self._record.info(self._container, state)

    async def fork(self, name: str | None = None) -> DockerSandbox:
        """A running copy of this sandbox, whatever its state (see the protocol)."""
        fork = await self._turns.whole(lambda: self._fork(name), unwanted=lambda unwanted: unwanted.close())
        return await fork.on_network(self._outlet.network)

    async def _fork(self, name: str | None) -> DockerSandbox:
        self._open_still()
        record = replace(self._record, key=new_id(), name=name, parent=self.id, created=time.time())
        if self._live is None:
            return await launched(self._containers, record, await self._sealed())
        image = await self._copy(self._live)
        try:
            return await launched(self._containers, record, image)
        except BaseException:
            await self._containers.drop_image(image)
            raise

    async def _sealed(self) -> str:
        """The disk of this stopped sandbox as an image, made once."""
        if self._template is None:
            self._template = await self._containers.commit(self.id)
            self._containers.templates.add(self._template)
        return self._template

    async def _unseal(self) -> None:
        """Let go of that image: it goes with the last fork of it."""
        if self._template is not None:
            template, self._template = self._template, None
            self._containers.templates.discard(template)
            await self._containers.drop_image(template)

    async def _copy(self, live: Live) -> str:
        """One moment of the disk of this sandbox, which runs, as an image."""
        async with self._halted(live):
            return await self._containers.commit(self.id)

    async def changes(self) -> list[Change]:
        """Always SandboxError: what Docker tells of changes does not say whether more than a time changed."""
        self._open_still()
        raise SandboxError("a sandbox in Docker does not know what changed in it; use a provider with `changes`")

    async def pristine(self) -> DockerSandbox:
        """As `changes`."""
        self._open_still()
        raise SandboxError("a sandbox in Docker does not know what it started from; use a provider with `changes`")

    async def set_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """A container keeps those it was made with: SandboxError for others (see `Remounts`)."""
        self._open_still()
        if mounts != self._record.mounts:
            raise SandboxError("a container keeps the mounts it was made with: make a new sandbox, or use `local`")

    async def _stop(self) -> None:
        self._open_still()
        if self._live is None:
            return
        with suppress(SandboxError):  # it ended by itself, or does not come to rest: its disk is as it left it
            await self._come_to_rest(self._live)
        await self._live.kill("it was stopped")
        await self._outlet.close()
        self._live, self._paused = None, False

    async def _come_to_rest(self, live: Live) -> None:
        """Have PID 1 put aside what a fork could not have otherwise."""
        if not self._paused:
            await live.halt()

    async def _start(self) -> None:
        self._open_still()
        if self._live is not None:
            return
        self._live = await self._containers.boot(self.id, self._record)
        self._bound_output()
        await self._unseal()  # it is not what the disk will be
        await self._outlet.open(self._live.channel)
        await self._follow_network()

    async def commit_as(self, reference: str, body: dict[str, object]) -> None:
        """Give the disk a name in the Engine; SandboxError unless this sandbox is stopped."""
        async with self._turns.one:
            self._open_still()
            if self._live is not None:
                raise SandboxError(f"sandbox {self.id[:12]} is running: stop it before it becomes an image")
            repository, _, tag = reference.rpartition(":")
            query = {"container": self.id, "pause": "0", "repo": repository, "tag": tag}
            await self._containers.engine.call("POST", "/commit", body=body, query=query)

    async def _close(self) -> None:
        async with self._turns.one:
            if self._live is not None:
                self._live.channel.end("it was closed")
                await self._outlet.close()
            await self._containers.remove(self.id, self._record)
            self._live = None
            self._containers.guests.discard(self._leave)
            await self._unseal()
            await self._containers.drop_image(self._image)

    async def _leave(self) -> None:
        """The provider is closed: a stopped sandbox with a name stays, and one that survives is stopped for that."""
        async with self._turns.one:  # until what was begun is done
            pass
        if self._record.survives:
            await self.stop()
        if self._record.lasts and self._live is None:
            await self._unseal()
        else:
            await self.close()


async def launched(containers: Containers, record: Record, image: str) -> DockerSandbox:
    """A new running sandbox on the disk of an image, told by its id."""
    container = await containers.make(record, image)
    try:
        live = await containers.boot(container, record)
    except BaseException:
        await asyncio.shield(containers.remove(container, record))
        raise
    return DockerSandbox(containers, container, record, image, live)
