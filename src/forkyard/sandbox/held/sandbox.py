"""A sandbox whose PID 1 is ours, as the host process holds it, whatever makes its walls: namespaces, or a container.

How a disk is come by, sealed and given up is the business of the classes under this one.
"""

from __future__ import annotations

import asyncio
import posixpath
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import DEFAULT_PATH, check_command, not_started, path_error
from forkyard.sandbox.held.archives import pull, push
from forkyard.sandbox.held.channel import CwdError
from forkyard.sandbox.held.commands import Settle
from forkyard.sandbox.held.files import read_file, write_file
from forkyard.sandbox.held.live import HeldLive
from forkyard.sandbox.held.outlet import Outlet
from forkyard.sandbox.held.ports import open_connection, open_port
from forkyard.sandbox.held.trust import Trust
from forkyard.sandbox.held.turns import Turns
from forkyard.sandbox.network import NO_NETWORK, Network, Visit
from forkyard.sandbox.process import over
from forkyard.sandbox.protocol import Process, Sandbox
from forkyard.sandbox.tail import Allowance
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    EndedBy,
    ImageConfig,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    Terminal,
)
from forkyard.values import MIB

LiveT = TypeVar("LiveT", bound=HeldLive)
_USED_UP = ProgramResult(-signal.SIGKILL, ended_by="output")


def _no_directory(err: CwdError, cwd: str) -> Exception:
    """The error of a working directory, which names it as the caller did."""
    return path_error(OSError(err.errno, f"cannot run a command there: {err.strerror}"), cwd)


class HeldSandbox(ABC, Generic[LiveT]):
    """A `Sandbox`, of which there is a `live` part while it runs, and always its `config`."""

    def __init__(self, config: ImageConfig, output_mb: int | None, outlet: Outlet, live: LiveT | None) -> None:
        self.config = config
        self._env = {"PATH": DEFAULT_PATH, **config.env}
        self._workdir = config.workdir or "/"
        self._user = config.user
        self._live = live
        self._outlet = outlet
        self._trust = Trust()
        self._paused = self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._turns = Turns()
        self._allowance = None if output_mb is None else Allowance(output_mb * MIB)
        self._bound_output()

    @property
    @abstractmethod
    def id(self) -> str:
        """The provider's identifier of this sandbox."""

    @property
    @abstractmethod
    def info(self) -> SandboxInfo:
        """What a listing would say of it."""

    def _open_still(self) -> None:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} is closed")

    def _running(self) -> LiveT:
        self._open_still()
        if self._live is None:
            raise SandboxError(f"sandbox {self.id[:12]} is stopped: start it, or fork it")
        return self._live

    def _acting(self) -> LiveT:
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
        live, fields, settle = self._order(argv, env, cwd, user)
        if self._allowance and self._allowance.used_up:
            return _USED_UP
        limits = (output_limit, output_limit)
        try:
            result = await live.commands.run(
                "run", fields, stdin=stdin, timeout=timeout, limits=limits, on_output=on_output
            )
        except CwdError as err:
            raise _no_directory(err, cwd or fields["cwd"]) from err
        except OSError as err:
            return not_started(fields["argv"][0], err)
        return settle(result)

    async def spawn(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        terminal: Terminal | None = None,
    ) -> Process:
        """Start a command (see the protocol)."""
        live, fields, settle = self._order(argv, env, cwd, user)
        if self._allowance and self._allowance.used_up:
            return over(_USED_UP)
        if terminal:
            fields["env"].setdefault("TERM", "xterm")
        try:
            return await live.commands.spawn(fields, terminal, settle)
        except CwdError as err:
            raise _no_directory(err, cwd or fields["cwd"]) from err
        except OSError as err:
            return over(not_started(fields["argv"][0], err))

    def _order(
        self, argv: Sequence[str] | str, env: Mapping[str, str] | None, cwd: str | None, user: str | None
    ) -> tuple[LiveT, dict[str, Any], Settle]:
        """What runs a command, what PID 1 has to know of it, and what says which limit it ran into."""
        command = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        variables = {**self._outlet.env, **self._env, **(env or {})}
        check_command(command, variables)
        live, directory = self._acting(), self._path(cwd or ".")
        who = self._user if user is None else user
        who = "" if who in ("root", "0", "0:0", "root:root") else who
        self._check_user(who)
        before = live.kills

        def settle(result: ProgramResult) -> ProgramResult:
            hit = None if result.ok else next((why for why, kills in live.kills.items() if kills > before[why]), None)
            return replace(result, ended_by=hit) if hit else result

        return live, {"argv": command, "env": variables, "cwd": directory, "user": who}, settle

    def limits_hit(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each limit since it was started (see `TellsLimits`)."""
        return {} if self._live is None else dict(self._live.kills)

    def _check_user(self, user: str) -> None:
        """Raise ValueError for a user, "" being root, as whom nothing can be run."""

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, path))

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
            self._open_still()
            await self._outlet.change(network)
            if self._live is not None:
                await self._follow_network()

    async def drained(self) -> None:
        """Wait for connections to end (see `Drains`)."""
        await self._outlet.drained()

    async def _follow_network(self) -> None:
        """Make inside what the network wants there; without that it is cut."""
        try:
            await self._furnish()
        except BaseException:
            await self._outlet.change(NO_NETWORK)
            raise

    async def _furnish(self) -> None:
        await self._trust.follow(self, self._outlet.certificate)

    async def on_network(self, network: Network) -> Self:
        """This sandbox, just started, on its network; it is closed when that cannot be had."""
        if network.mode != "none":
            try:
                await self.set_network(network)
            except BaseException:
                await self.close()
                raise
        return self

    @abstractmethod
    async def fork(self, name: str | None = None) -> Sandbox:
        """A running copy of this sandbox (see the protocol)."""

    @abstractmethod
    async def changes(self) -> list[Change]:
        """What differs from the state it started from (see the protocol)."""

    @abstractmethod
    async def pristine(self) -> Sandbox:
        """A new running sandbox in the state this one started from (see the protocol)."""

    async def is_quiet(self) -> bool:
        """Whether no process runs in it (see the protocol)."""
        return await self._running().is_quiet()

    @asynccontextmanager
    async def _halted(self, live: LiveT) -> AsyncIterator[None]:
        if self._paused:
            yield
            return
        try:
            await live.halt()
            yield
        finally:  # also when they did not come to rest
            with suppress(SandboxError):  # it died: what was copied of it is whole
                await live.go()

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

    async def stop(self) -> None:
        """End every process; the disk stays. A stopped sandbox stays as it is."""
        await self._turns.whole(self._stop)

    async def start(self) -> None:
        """Bring a stopped sandbox up again on its own disk; a running one stays as it is."""
        await self._turns.whole(self._start)

    async def close(self) -> None:
        """End the sandbox and forget its disk; closing twice is fine, and a cancelled close still happens."""
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            self._closed = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @abstractmethod
    async def _stop(self) -> None: ...

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...
