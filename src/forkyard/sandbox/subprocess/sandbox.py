"""One sandbox of the subprocess provider."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import check_command, not_started, path_error
from forkyard.sandbox.network import Network, Visit
from forkyard.sandbox.process import PipedProcess, over, piped
from forkyard.sandbox.protocol import Process
from forkyard.sandbox.subprocess.command import Child, Command, check_machine
from forkyard.sandbox.subprocess.files import pull, push, read_file, write_file
from forkyard.sandbox.subprocess.ground import Ground, check_user
from forkyard.sandbox.subprocess.processes import kill_tree
from forkyard.sandbox.subprocess.store import Record, Store
from forkyard.sandbox.tail import Tail
from forkyard.sandbox.values import (
    ARCHIVE_LIMIT,
    OUTPUT_LIMIT,
    READ_LIMIT,
    Change,
    OnOutput,
    ProgramResult,
    SandboxInfo,
    Terminal,
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
        self._ground = Ground(self._disk, record.workdir)
        self._closing = self.closed = False
        self._life = object()  # another one after every stop
        self._commands: dict[str, Child] = {}
        self._watches: set[asyncio.Task[None]] = set()  # one for each spawned process
        self._left_behind: list[Tail] = []  # pipes that children of ended commands still hold

    @property
    def id(self) -> str:
        """The sandbox's identifier."""
        return self._record.id

    @property
    def info(self) -> SandboxInfo:
        """What a listing would say of it."""
        return self._record.info

    @property
    def directory(self) -> Path:
        """Where its files lie (see `PlainDirectory`)."""
        return self._disk

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
        words, variables, key = self._order(argv, env, user)
        life = self._life
        with self._ground.directory(cwd) as there:
            try:
                command = Command(words, variables, there, stdin, output_limit, on_output)
            except OSError as err:
                check_machine(err)
                return not_started(words[0], err)
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

    async def spawn(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        terminal: Terminal | None = None,
    ) -> Process:
        """Start a command on the host, in the directory that corresponds to `cwd`; it has no terminal."""
        words, variables, key = self._order(argv, env, user)
        if terminal is not None:
            raise SandboxError("a subprocess sandbox has no terminals; use a provider with `terminals`")
        with self._ground.directory(cwd) as there:
            ours, theirs = piped()
            try:
                child = Child(words, variables, there, theirs)
            except OSError as err:
                ours.close()
                check_machine(err)
                return over(not_started(words[0], err))
            finally:
                for fd in theirs:
                    os.close(fd)

        async def kill() -> None:
            self._end(child, key)

        process = PipedProcess(ours, kill)
        self._commands[key] = child
        self._watches.add(watch := asyncio.get_running_loop().create_task(self._watch(child, key, process, self._life)))
        watch.add_done_callback(self._watches.discard)
        return process

    async def _watch(self, child: Child, key: str, process: PipedProcess, life: object) -> None:
        """See to the end of a spawned process."""
        end: ProgramResult | SandboxError = self._lost()
        try:
            code = await child.ended()
            end = ProgramResult(code) if life is self._life else end
        finally:
            del self._commands[key]
            self._left_behind += process.ended(end)

    def _order(
        self, argv: Sequence[str] | str, env: Mapping[str, str] | None, user: str | None
    ) -> tuple[list[str], dict[str, str], str]:
        """The words of a command, its environment, and the key its processes are known by."""
        self._require("running")
        check_user(user)
        words, key = ["sh", "-c", argv] if isinstance(argv, str) else list(argv), new_id()
        variables = self._environment(env or {}) | {COMMAND_VARIABLE: key}
        check_command(words, variables)
        return words, variables, key

    async def read(self, path: str, max_bytes: int = READ_LIMIT) -> bytes:
        """The content of a regular file of the directory."""
        return await self._at(path, lambda root, inside: read_file(root, path, inside, max_bytes))

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file: under another name first, so that nobody sees half of it."""
        await self._at(path, lambda root, inside: write_file(root, inside, data, mode))

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = ARCHIVE_LIMIT) -> bytes:
        """A tar archive of a file or tree of the directory."""
        return await self._at(path, lambda root, inside: pull(root, path, inside, exclude, max_bytes))

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """Unpack a tar archive into the directory `path`; everything in it belongs to this process's user."""
        await self._at(path, lambda root, inside: push(root, path, inside, archive, layer))

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
        record = self._record.forked(name, self._store.owners.own)
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

    async def _at(self, path: str, act: Callable[[int, str], T]) -> T:
        """Do something with the open root and the path told from it, beside the event loop; errors name `path`."""
        self._require("running")

        def there() -> T:
            with self._ground.root() as root:
                return act(root, self._ground.path(path))

        try:
            return await asyncio.to_thread(there)
        except OSError as err:
            self._require("running")  # if it was closed meanwhile, that is the error
            raise path_error(err, path) from err

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Nothing of the host's environment but PATH, without which the host's programs are not found."""
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._disk)}
        return base | self._record.env | dict(env) | {SANDBOX_VARIABLE: self.id}

    def _settled(self, command: Command, result: ProgramResult, life: object) -> ProgramResult:
        if life is not self._life:
            command.close()
            raise self._lost()
        self._left_behind = [tail for tail in (*self._left_behind, *command.outputs) if tail.open]
        return result

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"sandbox {self.id} was stopped or closed while a command ran")

    def _end(self, command: Child, key: str) -> None:
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
