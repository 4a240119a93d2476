"""One sandbox in a container, as the host process holds it."""

from __future__ import annotations

import asyncio
import posixpath
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import DEFAULT_PATH, check_command, not_started, path_error
from forkyard.sandbox.docker.containers import Containers
from forkyard.sandbox.docker.live import Live
from forkyard.sandbox.docker.outlet import DoorOutlet
from forkyard.sandbox.docker.record import Record
from forkyard.sandbox.local.archives import pull, push
from forkyard.sandbox.local.channel import CwdError
from forkyard.sandbox.local.contents import read_file, write_file
from forkyard.sandbox.local.network import open_connection, open_port
from forkyard.sandbox.local.turns import Turns
from forkyard.sandbox.network import Network, Visit
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    OnOutput,
    ProgramResult,
    SandboxInfo,
)
from forkyard.values import MIB, new_id


class DockerSandbox:
    """A `Sandbox` that is a container. `image` is the id of the image its disk stands on."""

    def __init__(self, containers: Containers, container: str, record: Record, image: str, live: Live | None) -> None:
        self._containers, self._container, self._record, self._image = containers, container, record, image
        self._live = live
        self._env = {"PATH": DEFAULT_PATH, **record.env}
        self._outlet = DoorOutlet(live.channel if live else None)
        self._template: str | None = None  # the disk of this stopped sandbox, as an image to fork from
        self._paused = self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._turns = Turns()
        output = record.limits.output_mb
        self._allowance = None if output is None else Allowance(output * MIB)
        self._bound_output()
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

    def _open_still(self) -> None:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} is closed")

    def _running(self) -> Live:
        self._open_still()
        if self._live is None:
            raise SandboxError(f"sandbox {self.id[:12]} is stopped: start it, or fork it")
        return self._live

    def _acting(self) -> Live:
        live = self._running()
        if self._paused:
            raise SandboxError(f"sandbox {self.id[:12]} is paused: resume it, or fork it")
        return live

    def _bound_output(self) -> None:
        if self._live is not None and self._allowance is not None:
            self._live.bound_output(self._allowance)

    async def run(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        on_output: OnOutput | None = None,
    ) -> ProgramResult:
        """Run a command to its end (see the protocol)."""
        command = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        variables = {**self._outlet.env, **self._env, **(env or {})}
        check_command(command, variables)
        live, directory = self._acting(), self._path(cwd or ".")
        who = self._record.user if user is None else user
        root = who in ("root", "0", "0:0", "root:root")
        fields = {"argv": command, "env": variables, "cwd": directory, "user": "" if root else who}
        if self._allowance and self._allowance.used_up:
            return ProgramResult(-signal.SIGKILL, ended_by="output")
        before = live.kills
        try:
            result = await live.commands.run(
                "run", fields, stdin=stdin, timeout=timeout, limits=(output_limit, output_limit), on_output=on_output
            )
        except CwdError as err:
            told = OSError(err.errno, f"cannot run a command there: {err.strerror}")
            raise path_error(told, cwd or directory) from err
        except OSError as err:
            return not_started(command[0], err)
        hit = None if result.ok else next((why for why, kills in live.kills.items() if kills > before[why]), None)
        return replace(result, ended_by=hit) if hit else result

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._record.workdir or "/", path))

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file (see the protocol)."""
        return await read_file(self._running().channel, path, self._path(path), max_bytes)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file (see the protocol)."""
        await write_file(self._acting().channel, path, self._path(path), data, mode)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of a file or tree (see the protocol)."""
        return await pull(self._acting().commands, path, self._path(path), exclude, max_bytes)

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive (see the protocol)."""
        await push(self._acting().commands, path, self._path(path), archive, layer)

    async def listen(self, port: int) -> socket.socket:
        """A listening socket on the container's loopback (see the protocol)."""
        return await open_port(self._running().channel, port)

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the container's loopback (see the protocol)."""
        return await open_connection(self._running().channel, port)

    @property
    def visits(self) -> tuple[Visit, ...]:
        """What was asked for through the door (see the protocol)."""
        return tuple(self._outlet.visits)

    async def set_network(self, network: Network) -> None:
        """Reach another network from now on (see the protocol)."""
        async with self._turns.one:
            self._open_still()
            await self._outlet.change(network)

    async def on_network(self, network: Network) -> DockerSandbox:
        """This sandbox, just started, on its network; it is closed when that cannot be had."""
        if network.mode != "none":
            try:
                await self.set_network(network)
            except BaseException:
                await self.close()
                raise
        return self

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
        try:
            if not self._paused:
                await live.halt()
            return await self._containers.commit(self.id)
        finally:  # also when they did not come to rest
            if not self._paused:
                with suppress(SandboxError):  # it died: what was copied of it is whole
                    await live.go()

    async def is_quiet(self) -> bool:
        """Whether no process runs in it (see the protocol)."""
        return await self._running().is_quiet()

    async def pause(self) -> None:
        """Bring every process to a halt; a paused sandbox stays as it is."""
        await self._turns.whole(self._pause)

    async def _pause(self) -> None:
        live = self._running()
        if self._paused:
            return
        try:
            await live.halt()
        except SandboxError:
            with suppress(SandboxError):
                await live.go()
            raise
        self._paused = True

    async def resume(self) -> None:
        """Let every process go on; a running sandbox stays as it is."""
        await self._turns.whole(self._resume)

    async def _resume(self) -> None:
        live = self._running()
        if self._paused:
            await live.go()
            self._paused = False

    async def changes(self) -> list[Change]:
        """Always SandboxError: what Docker tells of changes does not say whether more than a time changed."""
        self._open_still()
        raise SandboxError("a sandbox in Docker does not know what changed in it; use a provider with `changes`")

    async def pristine(self) -> DockerSandbox:
        """As `changes`."""
        self._open_still()
        raise SandboxError("a sandbox in Docker does not know what it started from; use a provider with `changes`")

    async def stop(self) -> None:
        """End every process; the disk stays. A stopped sandbox stays as it is."""
        await self._turns.whole(self._stop)

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

    async def start(self) -> None:
        """Bring a stopped sandbox up again on its own disk; a running one stays as it is."""
        await self._turns.whole(self._start)

    async def _start(self) -> None:
        self._open_still()
        if self._live is not None:
            return
        self._live = await self._containers.boot(self.id, self._record)
        self._bound_output()
        await self._unseal()  # it is not what the disk will be
        await self._outlet.open(self._live.channel)

    async def commit_as(self, reference: str, body: dict[str, object]) -> None:
        """Give the disk a name in the Engine; SandboxError unless this sandbox is stopped."""
        async with self._turns.one:
            self._open_still()
            if self._live is not None:
                raise SandboxError(f"sandbox {self.id[:12]} is running: stop it before it becomes an image")
            repository, _, tag = reference.rpartition(":")
            query = {"container": self.id, "pause": "0", "repo": repository, "tag": tag}
            await self._containers.engine.call("POST", "/commit", body=body, query=query)

    async def close(self) -> None:
        """End the sandbox and forget its disk; closing twice is fine, and a cancelled close still happens."""
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            self._closed = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

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
        """The provider is closed: a stopped sandbox with a name stays."""
        async with self._turns.one:  # until what was begun is done
            pass
        if self._record.name is None or self._live is not None:
            await self.close()
        else:
            await self._unseal()


async def launched(containers: Containers, record: Record, image: str) -> DockerSandbox:
    """A new running sandbox on the disk of an image, told by its id."""
    container = await containers.make(record, image)
    try:
        live = await containers.boot(container, record)
    except BaseException:
        await asyncio.shield(containers.remove(container, record))
        raise
    return DockerSandbox(containers, container, record, image, live)
