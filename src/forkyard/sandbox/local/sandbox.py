"""One sandbox of the local provider, as the host process holds it."""

from __future__ import annotations

import asyncio
import posixpath
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import DEFAULT_PATH, check_command, not_started, path_error
from forkyard.sandbox.local.archives import pull, push
from forkyard.sandbox.local.box import Box, Origin
from forkyard.sandbox.local.channel import CwdError
from forkyard.sandbox.local.contents import read_file, write_file
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.nameserver import NameServer
from forkyard.sandbox.local.network import Outlet, open_connection, open_port
from forkyard.sandbox.local.turns import Turns
from forkyard.sandbox.local.yard import Yard
from forkyard.sandbox.network import NO_NETWORK, Network, Visit
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    ImageConfig,
    Limits,
    OnOutput,
    ProgramResult,
    SandboxInfo,
)
from forkyard.values import MIB


class LocalSandbox:
    """A `Sandbox` over Linux namespaces: a box of a yard, and what lives of it while it runs."""

    def __init__(self, yard: Yard, box: Box, limits: Limits, live: Live | None) -> None:
        self._yard = yard
        self.box = box
        self.limits = limits
        self._env = {"PATH": DEFAULT_PATH, **box.config.env}
        self._live = live
        self._outlet = Outlet(live.channel if live else None)
        self._name_server = NameServer()
        self._paused = False
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._turns = Turns()
        self._allowance = None if limits.output_mb is None else Allowance(limits.output_mb * MIB)
        self._bound_output()
        yard.guests.add(self._leave)

    @property
    def id(self) -> str:
        """The store's identifier."""
        return self.box.id

    @property
    def info(self) -> SandboxInfo:
        """The store's row."""
        return replace(self.box.info, state="paused") if self._paused else self.box.info

    def _running(self) -> Live:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} is closed")
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
        live = self._acting()
        who = self.box.config.user if user is None else user
        directory = self._path(cwd or ".")
        fields = {
            "argv": command,
            "env": variables,
            "cwd": directory,
            "user": "" if who in ("root", "0", "0:0", "root:root") else who,
        }
        if fields["user"] and not self._yard.many_users:
            raise ValueError(
                f"this provider runs commands as root only, not as {who!r}: it was started by an ordinary user "
                "without subordinate ids (install uidmap and add a range to /etc/subuid and /etc/subgid)"
            )
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
        return posixpath.normpath(posixpath.join(self.box.config.workdir or "/", path))

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
        """A listening socket on the sandbox's loopback (see the protocol)."""
        return await open_port(self._running().channel, port)

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the sandbox's loopback (see the protocol)."""
        return await open_connection(self._running().channel, port)

    @property
    def visits(self) -> tuple[Visit, ...]:
        """What was asked for through the door (see the protocol)."""
        return tuple(self._outlet.visits)

    async def set_network(self, network: Network) -> None:
        """Reach another network from now on (see the protocol)."""
        async with self._turns.one:
            if self._closed:
                raise SandboxLost(f"sandbox {self.id[:12]} is closed")
            await self._outlet.change(network)
            if self._live is not None:
                await self._follow_network()

    async def on_network(self, network: Network) -> LocalSandbox:
        """This sandbox, just started, on its network; it is closed when that cannot be had."""
        if network.mode != "none":
            try:
                await self.set_network(network)
            except BaseException:
                await self.close()
                raise
        return self

    async def _follow_network(self) -> None:
        """Have names resolved where the network does it; without that it is cut."""
        try:
            await self._name_server.follow(self, self._outlet.name_server)
        except BaseException:
            await self._outlet.change(NO_NETWORK)
            raise

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
        return await launched(self._yard, box.origin, name, box.config, self.limits, copied=copied)

    @asynccontextmanager
    async def _halted(self, live: Live) -> AsyncIterator[None]:
        if self._paused:
            yield
            return
        try:
            await live.halt()
            yield
        finally:  # also when they did not come to rest
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

    def _open_still(self) -> None:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} is closed")

    async def stop(self) -> None:
        """End every process and seal the disk; a stopped sandbox stays as it is."""
        await self._turns.whole(self._stop)

    async def _stop(self) -> None:
        self._open_still()
        if self._live is None:
            return
        with suppress(SandboxLost):  # it ended by itself: its disk is as it left it
            await self._leave_network(self._live)
        await self._live.kill("it was stopped")
        await self._outlet.close()
        if self.box.name:  # it can outlive this process, and then has to outlive the machine's power as well
            await asyncio.to_thread(self._yard.store.settle)
        self.box = self._yard.store.set_stopped(self.box)
        self._live, self._paused = None, False

    async def start(self) -> None:
        """Bring a stopped sandbox up again on its own disk; a running one stays as it is."""
        await self._turns.whole(self._start)

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

    async def close(self) -> None:
        """End the sandbox and forget its disk; closing twice is fine, and a cancelled close still happens."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

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
        if self.box.name is None or self._live is not None:
            await self.close()


async def launched(
    yard: Yard, origin: Origin, name: str | None, config: ImageConfig, limits: Limits, *, copied: str | None = None
) -> LocalSandbox:
    """A new running sandbox on the disks of an origin (see `Yard.launch`)."""
    box, live = await yard.launch(origin, name, config, limits, copied=copied)
    return LocalSandbox(yard, box, limits, live)
