"""One sandbox of the local provider, as the host process holds it."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import DEFAULT_PATH, check_command, path_error
from forkyard.sandbox.local.box import Box
from forkyard.sandbox.local.channel import CwdError
from forkyard.sandbox.local.contents import is_plain_file, read_all, write_all
from forkyard.sandbox.local.live import Live
from forkyard.sandbox.local.network import Outlet, open_connection, open_port
from forkyard.sandbox.local.store import Store
from forkyard.sandbox.network import Network, Visit
from forkyard.sandbox.protocol import (
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

_ERRORS_KEPT = 64 << 10
ARCHIVE_TIMEOUT = 600.0


class Host(Protocol):
    """What a sandbox needs of the provider that made it."""

    many_users: bool

    @property
    def store(self) -> Store:
        """The store its row and disks are in."""
        ...

    async def launch(
        self, source: Box, name: str | None, config: ImageConfig, limits: Limits, *, copy: bool = False
    ) -> LocalSandbox:
        """A running sandbox on the disks of another, or with `copy` on a copy of the one being written."""
        ...

    async def shallow(self, box: Box) -> Box:
        """The same box, which does not run yet, on no more disks than are good for it."""
        ...

    async def find_changes(self, box: Box) -> list[Change]:
        """What the disks a sandbox wrote change of those it started from."""
        ...

    async def boot(self, box: Box, limits: Limits) -> Live:
        """Bring up PID 1 of a box whose row says "running"."""
        ...

    def forget(self, sandbox: LocalSandbox) -> None:
        """Drop the row and the disk of a sandbox that has ended."""
        ...


class LocalSandbox:
    """A `Sandbox` over Linux namespaces. Made by `LocalProvider`."""

    def __init__(self, host: Host, box: Box, limits: Limits, live: Live | None) -> None:
        self._host = host
        self.box = box
        self.limits = limits
        self._env = {"PATH": DEFAULT_PATH, **box.config.env}
        self._live = live
        self._outlet = Outlet(live.channel if live else None)
        self._paused = False
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._changing = asyncio.Lock()

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
        if fields["user"] and not self._host.many_users:
            raise ValueError(
                f"this provider runs commands as root only, not as {who!r}: it was started by an ordinary user "
                "without subordinate ids (install uidmap and add a range to /etc/subuid and /etc/subgid)"
            )
        before = live.kills
        try:
            result = await live.commands.run(
                "run", fields, stdin=stdin, timeout=timeout, limits=(output_limit, output_limit), on_output=on_output
            )
        except CwdError as err:
            told = OSError(err.errno, f"cannot run a command there: {err.strerror}")
            raise path_error(told, cwd or directory) from err
        except OSError as err:
            return _not_started(command[0], err)
        hit = None if result.ok else next((why for why, kills in live.kills.items() if kills > before[why]), None)
        return replace(result, ended_by=hit) if hit else result

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.box.config.workdir or "/", path))

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file (see the protocol)."""
        fd = await self._open("read", path)
        size = os.fstat(fd).st_size
        try:
            if size <= MIB:
                return read_all(fd, max_bytes, path, size)
            # The thread owns the descriptor: a cancelled read goes on in it, and must not meet another's number.
            return await asyncio.shield(asyncio.to_thread(read_all, fd, max_bytes, path, size))
        except OSError as err:
            raise SandboxError(f"cannot read {path}: {err.strerror}") from err

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file (see the protocol)."""
        fd = await self._open("write", path, mode=mode)
        try:
            if len(data) <= MIB:
                write_all(fd, data)
            else:
                await asyncio.shield(asyncio.to_thread(write_all, fd, data))
        except OSError as err:
            raise SandboxError(f"cannot write {path}: {err.strerror}") from err

    async def _open(self, op: str, path: str, **fields: Any) -> int:
        try:
            live = self._running() if op == "read" else self._acting()
            _, fds = await live.channel.request(op, path=self._path(path), **fields)
        except OSError as err:
            raise path_error(err, path) from err
        if len(fds) != 1 or not is_plain_file(fds[0]):
            for fd in fds:
                os.close(fd)
            raise SandboxError(f"{path} is not a regular file")
        os.set_blocking(fds[0], True)
        return fds[0]

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of a file or tree (see the protocol)."""
        result = await self._archive("pull", path, limits=(max_bytes, _ERRORS_KEPT), exclude=list(exclude))
        if result.stdout_total > max_bytes:
            raise SandboxError(f"the archive of {path} is over the {max_bytes} byte limit")
        return result.stdout_bytes

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive (see the protocol)."""
        await self._archive("push", path, limits=(0, _ERRORS_KEPT), stdin=archive or bytes(1024), layer=layer)

    async def _archive(
        self, op: str, path: str, *, limits: tuple[int, int], stdin: bytes = b"", **fields: Any
    ) -> ProgramResult:
        target = {"path": self._path(path), "cwd": "/", **fields}
        try:
            result = await self._acting().commands.run(
                op, target, stdin=stdin, timeout=ARCHIVE_TIMEOUT, limits=limits, stop_at_limit=op == "pull"
            )
        except OSError as err:
            raise SandboxError(f"cannot {op} {path}: {err.strerror}") from err
        if result.timed_out:
            raise SandboxError(f"cannot {op} {path}: it took longer than {ARCHIVE_TIMEOUT:.0f} s")
        if result.exit_code != 0 and result.stdout_total <= limits[0]:
            raise _archive_error(op, path, target["path"], result)
        return result

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
        async with self._changing:
            if self._closed:
                raise SandboxLost(f"sandbox {self.id[:12]} is closed")
            await self._outlet.change(network)
            await self._name_server()

    async def on_network(self, network: Network) -> LocalSandbox:
        """This sandbox, just started, on its network; it is closed when that cannot be had."""
        if network.mode != "none":
            try:
                await self.set_network(network)
            except BaseException:
                await self.close()
                raise
        return self

    async def _name_server(self) -> None:
        if server := self._outlet.name_server:
            await self.write("/etc/resolv.conf", f"nameserver {server}\n".encode())

    async def fork(self, name: str | None = None) -> LocalSandbox:
        """A running copy of this sandbox, whatever its state (see the protocol)."""
        forked = await self._forked(name)
        return await forked.on_network(self._outlet.network)

    async def _forked(self, name: str | None) -> LocalSandbox:
        self._open_still()
        if self._live is None:
            return await self._host.launch(self.box, name, self.box.config, self.limits)
        async with self._changing:  # one copy at a time, and nobody stops or closes what is copied
            self._open_still()
            if self._live is None:
                return await self._host.launch(self.box, name, self.box.config, self.limits)
            async with self._halted(self._live):
                return await self._host.launch(self.box, name, self.box.config, self.limits, copy=True)

    @asynccontextmanager
    async def _halted(self, live: Live) -> AsyncIterator[None]:
        if self._paused:
            yield
            return
        try:
            await live.halt()
            yield
        finally:  # also when it was cancelled while it came to rest
            await asyncio.shield(live.go())

    async def pause(self) -> None:
        """Bring every process to a halt; a paused sandbox stays as it is."""
        async with self._changing:
            live = self._running()
            if not self._paused:
                await live.halt()
                self._paused = True

    async def resume(self) -> None:
        """Let every process go on; a running sandbox stays as it is."""
        async with self._changing:
            live = self._running()
            if self._paused:
                await live.go()
                self._paused = False

    async def changes(self) -> list[Change]:
        """What differs from the state this sandbox started from (see the protocol)."""
        async with self._changing:
            self._open_still()
            return await self._host.find_changes(self._host.store.get(self.id))

    async def pristine(self) -> LocalSandbox:
        """A new running sandbox in the state this one started from."""
        async with self._changing:
            self._open_still()
            box = self._host.store.get(self.id)
            start = replace(box, id="", kind="image", name=box.image, stack=box.stack[box.own :])
            return await self._host.launch(start, None, box.config, self.limits)

    def _open_still(self) -> None:
        if self._closed:
            raise SandboxLost(f"sandbox {self.id[:12]} is closed")

    async def stop(self) -> None:
        """End every process and seal the disk; a stopped sandbox stays as it is."""
        async with self._changing:
            self._open_still()
            if self._live is None:
                return
            await self._live.kill("it was stopped")
            await self._outlet.close()
            if self.box.name:  # it can outlive this process, and then has to outlive the machine's power as well
                await asyncio.to_thread(self._host.store.settle)
            self._live, self._paused = None, False
            self.box = self._host.store.set_stopped(self.box)

    async def start(self) -> None:
        """Bring a stopped sandbox up again on its own disk; a running one stays as it is."""
        async with self._changing:
            self._open_still()
            if self._live is None:
                self.box = await self._host.shallow(self.box)
                self.box = self._host.store.set_running(self.box)
                self._live = await self._host.boot(self.box, self.limits)
                await self._outlet.open(self._live.channel)
                await self._name_server()

    async def close(self) -> None:
        """End the sandbox and forget its disk; closing twice is fine, and a cancelled close still happens."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._changing:
            if self._live is not None:
                await self._live.kill("it was closed")
                await self._outlet.close()
                self._live = None
            self._host.forget(self)


def _not_started(program: str, err: OSError) -> ProgramResult:
    """A command that could not start, told as a shell tells it."""
    message = f"forkyard: {err.filename or program}: {err.strerror}\n".encode(errors="replace")
    missing = isinstance(err, FileNotFoundError)
    return ProgramResult(127 if missing else 126, b"", message, 0, len(message))


def _archive_error(op: str, path: str, inside: str, result: ProgramResult) -> Exception:
    try:
        report = json.loads(result.stderr)
        number, message = report["errno"], str(report["message"])
    except (ValueError, KeyError, TypeError):
        return SandboxError(f"cannot {op} {path}: it ended with {result.exit_code} {result.stderr[-500:]}")
    where = report.get("path") or path
    if op == "pull" and isinstance(number, int) and where == inside:  # the path itself, not something beneath it
        return path_error(OSError(number, message), path)
    return SandboxError(f"cannot {op} {path}: {message} ({where})")
