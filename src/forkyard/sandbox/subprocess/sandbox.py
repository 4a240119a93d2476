"""One sandbox of the subprocess provider."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import pwd
import socket
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from typing_extensions import Buffer

from forkyard.errors import SandboxError, SandboxLost, TooLarge
from forkyard.sandbox.common import check_command, not_started, path_error
from forkyard.sandbox.inside import archives, files, unpack
from forkyard.sandbox.network import Network, Visit
from forkyard.sandbox.subprocess.command import Command, check_machine
from forkyard.sandbox.subprocess.processes import kill_tree
from forkyard.sandbox.subprocess.store import Record, Store
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    OnOutput,
    ProgramResult,
    SandboxInfo,
)
from forkyard.values import new_id

SANDBOX_VARIABLE = "FORKYARD_SANDBOX"
COMMAND_VARIABLE = "FORKYARD_COMMAND"
T = TypeVar("T")


class SubprocessSandbox:
    """A directory and the host's processes that were started for it.

    `read`, `write`, `pull` and `push` see the directory as the whole file system. Commands run on the host, in the
    directory that corresponds to theirs: an absolute path in a command is the host's. Nothing is walled off.
    """

    def __init__(self, store: Store, record: Record, make: Callable[[Record], SubprocessSandbox]) -> None:
        self._store, self._record, self._make = store, record, make
        self._disk = store.disk(record.id)
        self._closing = self.closed = False
        self._life = object()  # another one after every stop
        self._commands: dict[str, Command] = {}
        self._left_behind: list[Command] = []

    @property
    def id(self) -> str:
        """The sandbox's identifier."""
        return self._record.id

    @property
    def info(self) -> SandboxInfo:
        """What a listing would say of it."""
        return self._record.info

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
        """Run a command on the host, in the directory that corresponds to `cwd`."""
        self._require("running")
        _check_user(user)
        words = ["sh", "-c", argv] if isinstance(argv, str) else list(argv)
        key, life = new_id(), self._life
        variables = self._environment(env or {}) | {COMMAND_VARIABLE: key}
        check_command(words, variables)
        with self._root() as root:
            there = self._enter(root, cwd)
            try:
                command = Command(words, variables, there, stdin, output_limit, on_output)
            except OSError as err:
                check_machine(err)
                return not_started(words[0], err)
            finally:
                os.close(there)
        self._commands[key] = command
        try:
            timed_out = await command.wait(timeout)
            if timed_out or command.failed:
                self._end(command, key)
            result = command.finish(timed_out)
        except BaseException:  # cancelled, or `on_output` raised
            self._end(command, key)
            command.abandon()
            raise
        finally:
            del self._commands[key]
        return self._settled(command, result, life)

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file of the directory."""

        def read(root: int) -> bytes:
            with os.fdopen(files.open_for_read(root, self._path(path)), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > max_bytes:
                    raise TooLarge(f"{path} has {size} bytes, more than the limit of {max_bytes}")
                return file.read(size)

        return await self._at(path, read)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file: under another name first, so that nobody sees half of it."""

        def write(root: int) -> None:
            there, new = self._path(path), f".{new_id()}"
            try:
                with os.fdopen(files.open_for_write(root, there, mode, new), "wb") as file:
                    file.write(data)
                files.place(root, there, new, keep=True)
            except BaseException:
                files.place(root, there, new, keep=False)
                raise

        await self._at(path, write)

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of a file or tree of the directory."""

        def pull(root: int) -> bytes:
            out = _Bounded(max_bytes, path)
            archives.pull(root, self._path(path), list(exclude), out)
            return out.getvalue()

        return await self._at(path, pull)

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive into the directory `path`; everything in it belongs to this process's user."""

        source = io.BytesIO(archive or bytes(1024))

        def push(root: int) -> None:
            try:
                unpack.push(root, self._path(path), source, owners=False, layer=layer)
            except (OSError, tarfile.TarError, ValueError) as err:
                raise SandboxError(f"cannot push {path}: {err}") from err

        await self._at(path, push)

    async def listen(self, port: int) -> socket.socket:
        """Always SandboxError: there is no loopback of its own."""
        self._require("running")
        raise SandboxError("a subprocess sandbox has no network of its own to listen in; use a provider with `listen`")

    async def connect(self, port: int) -> socket.socket:
        """Always SandboxError, for the same reason."""
        self._require("running")
        raise SandboxError("a subprocess sandbox has no network of its own to reach; use a provider with `connect`")

    async def set_network(self, network: Network) -> None:
        """Always SandboxError: it has the host's network, whatever is said."""
        raise SandboxError("a subprocess sandbox has the host's network; use a provider with `live_network`")

    @property
    def visits(self) -> tuple[Visit, ...]:
        """None is known of."""
        return ()

    async def fork(self, name: str | None = None) -> SubprocessSandbox:
        """A running copy of this stopped sandbox."""
        self._require("stopped", "stop it before forking it")
        record = self._record.forked(name, self._store.owner)
        self._store.add(record)
        try:
            await asyncio.to_thread(self._copy, record.id)
        except BaseException:
            await asyncio.to_thread(self._store.remove, record.id)
            raise
        return self._make(record)

    async def is_quiet(self) -> bool:
        """Always False: a process that hides is not found."""
        self._require("running")
        return False

    async def pause(self) -> None:
        """Always SandboxError: a process that hides is not found, and would go on."""
        self._require("running")
        raise SandboxError("a subprocess sandbox cannot be paused; use a provider with `pause`")

    async def resume(self) -> None:
        """Nothing to do: it is never paused."""
        self._require("running")

    async def changes(self) -> list[Change]:
        """Always SandboxError: nothing is kept of the state it started from."""
        self._require_open()
        raise SandboxError("a subprocess sandbox does not know what changed in it; use a provider with `changes`")

    async def pristine(self) -> SubprocessSandbox:
        """As `changes`."""
        self._require_open()
        raise SandboxError("a subprocess sandbox does not know what it started from; use a provider with `changes`")

    async def stop(self) -> None:
        """End every process that can be found; the directory becomes a template. Nothing changes when it is one."""
        self._require_open()
        if self._record.state == "stopped":
            return
        self._end_all()
        self._record = replace(self._record, state="stopped")
        self._store.save(self._record)

    async def start(self) -> None:
        """Let commands run again; a running sandbox stays as it is."""
        self._require_open()
        if self._record.state == "running":
            return
        self._record = self._store.own(replace(self._record, state="running"))

    async def close(self) -> None:
        """End every process that can be found and remove the directory."""
        self._closing = True
        if not self.closed:
            self._end_all()
            await asyncio.to_thread(self._store.remove, self.id)
            self.closed = True

    def _require(self, state: str, hint: str = "start it first") -> None:
        self._require_open()
        if self._record.state != state:
            raise SandboxError(f"sandbox {self.id} is {self._record.state}, not {state}: {hint}")

    def _require_open(self) -> None:
        if self._closing:
            raise SandboxLost(f"sandbox {self.id} is closed")

    async def _at(self, path: str, act: Callable[[int], T]) -> T:
        """Do something with the open root, beside the event loop; errors of the host name `path`."""
        self._require("running")

        def there() -> T:
            with self._root() as root:
                return act(root)

        try:
            return await asyncio.to_thread(there)
        except OSError as err:
            self._require("running")  # if it was closed meanwhile, that is the error
            raise path_error(err, path) from err

    @contextmanager
    def _root(self) -> Iterator[int]:
        """The directory that is this sandbox's "/", with its working directory made when missing."""
        with files.root_at(str(self._disk)) as root:
            os.close(files.make_directories(root, self._path(".")))
            yield root

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", self._record.workdir, path))

    def _enter(self, root: int, cwd: str | None) -> int:
        directory = self._path(cwd or ".")
        try:
            return files.open_inside(root, directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as err:
            told = OSError(err.errno, f"cannot run a command there: {err.strerror}")
            raise path_error(told, cwd or directory) from err

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Nothing of the host's environment but PATH, without which the host's programs are not found."""
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._disk)}
        return base | self._record.env | dict(env) | {SANDBOX_VARIABLE: self.id}

    def _settled(self, command: Command, result: ProgramResult, life: object) -> ProgramResult:
        if life is not self._life:
            command.close()
            raise SandboxLost(f"sandbox {self.id} was stopped or closed while a command ran")
        self._left_behind = [left for left in (*self._left_behind, command) if not left.heard_out]
        return result

    def _end(self, command: Command, key: str) -> None:
        kill_tree(f"{COMMAND_VARIABLE}={key}".encode(), command.leader)

    def _end_all(self) -> None:
        self._life = object()
        for key, command in self._commands.items():
            self._end(command, key)
        kill_tree(sandbox_marker(self.id))
        for left in self._left_behind:
            left.close()
        self._left_behind = []

    def _copy(self, target: str) -> None:
        self._store.copy_disk(self.id, target)


def sandbox_marker(sandbox_id: str) -> bytes:
    """What every process of a sandbox has in its environment."""
    return f"{SANDBOX_VARIABLE}={sandbox_id}".encode()


def own_user() -> tuple[str, str]:
    """Number and name of the user all commands run as."""
    uid = os.getuid()
    try:
        return str(uid), pwd.getpwuid(uid).pw_name
    except KeyError:  # a number without a name, as in many containers
        return str(uid), str(uid)


def _check_user(user: str | None) -> None:
    if user is not None and user not in own_user():
        raise ValueError(f"cannot run as {user!r}: commands of a subprocess sandbox run as {own_user()[1]}")


class _Bounded(io.BytesIO):
    """Takes an archive, up to a limit."""

    def __init__(self, max_bytes: int, path: str) -> None:
        super().__init__()
        self._max_bytes, self._path = max_bytes, path

    def write(self, data: Buffer, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise TooLarge(f"{self._path} is larger than the limit of {self._max_bytes} bytes for an archive")
        return super().write(data)
