"""One command of a sandbox: started on pipes of our own, read as it writes, waited for by a descriptor."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from forkyard.errors import SandboxError
from forkyard.sandbox.inside.starting import hear_all_signals
from forkyard.sandbox.tail import Listener, Tail
from forkyard.sandbox.values import OnOutput, ProgramResult


class Child:
    """A started command on streams of somebody's. Raises OSError from its making when it cannot be executed."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: int, streams: Sequence[int]) -> None:
        self._ended = asyncio.Event()
        self._process = subprocess.Popen(
            argv,
            env=env,
            cwd=f"/proc/self/fd/{cwd}",
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            umask=0o022,
            preexec_fn=hear_all_signals,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited)

    @property
    def leader(self) -> int | None:
        """The process, leader of a session of its own; None once it is gone and its number may be another's."""
        return self._process.pid if self._process.returncode is None else None

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        await self._ended.wait()
        return self._process.returncode

    def _exited(self) -> None:
        self._process.wait()
        self._ended.set()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class Command(Child):
    """A command that is read as it writes, for one who waits for its end."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: int,
        stdin: bytes,
        output_limit: int,
        on_output: OnOutput | None,
    ) -> None:
        self._enough = asyncio.Event()
        self._listener = Listener(on_output, self._enough.set)
        self.outputs: list[Tail] = []
        theirs = []
        try:
            for name in ("stdout", "stderr"):
                ours, write = os.pipe()
                theirs.append(write)
                self.outputs.append(Tail(ours, output_limit, self._listener.of(name)))
            with _as_file(stdin) as file:
                super().__init__(argv, env, cwd, [file.fileno(), *theirs])
        except BaseException:
            self.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    @property
    def failed(self) -> bool:
        """Whether `on_output` raised: the command is to be ended."""
        return self._listener.error is not None

    async def wait(self, timeout: float | None) -> bool:
        """Wait for the end of the command, or of its caller's patience; returns whether the deadline came first."""
        try:
            async with asyncio.timeout(timeout):
                await self._enough.wait()
        except TimeoutError:
            return True
        return False

    def finish(self, timed_out: bool = False) -> ProgramResult:
        """The result of a command that has ended or was killed. Raises what `on_output` raised."""
        self._exited()
        (out, out_total), (err, err_total) = [(output.finish(), output.total) for output in self.outputs]
        if self._listener.error:
            raise self._listener.error
        return ProgramResult(self._process.returncode, out, err, out_total, err_total, timed_out)

    def abandon(self) -> None:
        """Let go of a command that was killed, without a result."""
        self._exited()
        self.close()

    def close(self) -> None:
        """Stop reading what the command, or a child it left behind, writes."""
        for output in self.outputs:
            output.close()

    def _exited(self) -> None:
        super()._exited()
        self._enough.set()


def _as_file(data: bytes) -> BinaryIO:
    """Standard input as a file in memory: it needs no feeding, has an end, and may be left unread."""
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.flush()
    file.seek(0)
    return file


def check_machine(err: OSError) -> None:
    """Raise SandboxError when a command was not started since the machine has no room for another."""
    if err.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        raise SandboxError(f"the machine cannot start a command: {err.strerror}") from err
