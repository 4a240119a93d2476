"""Running one command inside a sandbox: pipes owned by the host, output bounded, the tree killed at the deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.local.channel import Channel, Interrupted, checked
from forkyard.sandbox.tail import CHUNK, Allowance, Listener, Tail
from forkyard.sandbox.values import OnOutput, ProgramResult

HELD = 64  # pipes of leftover children that the host keeps reading, in each sandbox
KILL_TIMEOUT = 5.0


class Commands:
    """The commands of one live sandbox, and the pipes their leftover children still hold."""

    def __init__(self, channel: Channel, give_up: Callable[[str], None]) -> None:
        self._channel = channel
        self._give_up = give_up
        self._readers: list[Tail] = []
        self.allowance: Allowance | None = None  # of what programs write, where that is bounded

    def close(self) -> None:
        """Close every pipe; the processes behind them are gone."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    async def run(
        self,
        op: str,
        fields: dict[str, Any],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        limits: tuple[int, int],
        on_output: OnOutput | None = None,
        stop_at_limit: bool = False,
    ) -> ProgramResult:
        """Start `op` and wait until its process ends or the deadline passes; OSError when it cannot start.

        It is killed as soon as `on_output` raises, which is raised on; with `stop_at_limit` also as soon as its
        standard output is longer than its limit.
        """
        request = self._channel.new_id()
        spend = self.allowance.spend if self.allowance and op == "run" else None
        early = _Early(self._channel, request)
        pipes = _Pipes(stdin, limits, on_output, stop_at_limit, spend, early.enough)
        try:
            answer = await self._channel.post(request, op, pipes.theirs, **fields)
            pipes.started()
            early.after(timeout)
            try:
                reply = await answer
            except Interrupted as interrupted:
                await self._kill(request)
                reply = await interrupted.later
            status = int(checked(reply)[0]["status"])
        except asyncio.CancelledError:
            with suppress(SandboxError):
                await self._kill(request)
            raise
        except TimeoutError:
            self._give_up("it takes no commands any more")
            raise SandboxLost("the sandbox takes no commands any more") from None
        finally:
            early.cancel()
            self._channel.forget(request)
            kept = pipes.finish()
            self._hold([*self._readers, *pipes.readers])
        if pipes.listener.error:
            raise pipes.listener.error
        (out, out_total), (err, err_total) = kept
        return ProgramResult(status, out, err, out_total, err_total, early.timed_out)

    async def _kill(self, request: int) -> None:
        """End a command's whole tree. A PID 1 that does not answer was brought to a halt, and the sandbox ends."""
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self._channel.request("kill", target=request)
        except TimeoutError:
            self._give_up("its PID 1 does not answer")

    def _hold(self, readers: list[Tail]) -> None:
        """Keep the pipes that leftover children still write to, but no more than the host can spare."""
        still = [reader for reader in readers if reader.open]
        for reader in still[:-HELD]:
            reader.close()
        self._readers = still[-HELD:]


class _Early:
    """Ends the wait for a command that has not ended: at its deadline, or when there is enough of its output."""

    def __init__(self, channel: Channel, request: int) -> None:
        self._channel, self._request = channel, request
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False
        self.timed_out = False

    def after(self, timeout: float | None) -> None:
        """Set the deadline."""
        if timeout is not None:
            self._deadline = asyncio.get_running_loop().call_later(timeout, self._late)

    def _late(self) -> None:
        self.timed_out = self.enough()

    def enough(self) -> bool:
        """Wait no longer; whether this ended the wait."""
        if self._over:
            return False
        self._over = self._channel.interrupt(self._request)
        return self._over

    def cancel(self) -> None:
        """The command has ended."""
        if self._deadline is not None:
            self._deadline.cancel()


class _Pipes:
    """A command's three standard streams: the host's ends, and for a while the command's."""

    def __init__(
        self,
        stdin: bytes,
        limits: tuple[int, int],
        on_output: OnOutput | None,
        stop_at_limit: bool,
        spend: Callable[[int], None] | None,
        enough: Callable[[], object],
    ) -> None:
        self.listener = Listener(self._limited if stop_at_limit else on_output, enough)
        self._spend = spend
        self._enough = enough  # of its output: it is to be killed
        self._feeder: _Feeder | None = None
        self.theirs: list[int] = []
        self.readers: list[Tail] = []
        try:
            self._open(stdin, limits)
        except OSError as err:
            self.finish()
            for reader in self.readers:
                reader.close()
            raise SandboxError(f"the host cannot give a command its streams: {err.strerror}") from err

    def _open(self, stdin: bytes, limits: tuple[int, int]) -> None:
        if stdin:
            read, write = os.pipe()
            self._feeder = _Feeder(write, stdin)
        else:
            read = os.dup(_devnull())
        self.theirs.append(read)
        for name, limit in zip(("stdout", "stderr"), limits, strict=True):
            read, write = os.pipe()
            self.theirs.append(write)
            self.readers.append(Tail(read, limit, self.listener.of(name), self._spend))

    def _limited(self, stream: str, data: bytes) -> None:
        if stream == "stdout" and self.readers[0].over:
            self._enough()

    def started(self) -> None:
        """The command has its ends now: close ours of them, and feed it."""
        self._close_theirs()
        if self._feeder:
            self._feeder.start()

    def _close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def finish(self) -> list[tuple[bytes, int]]:
        """What was kept of each output stream, and how much there was."""
        self._close_theirs()
        if self._feeder:
            self._feeder.close()
        return [(reader.finish(), reader.total) for reader in self.readers]


class _Feeder:
    """Writes data into a pipe and ends it; a command that does not read it all is not an error."""

    def __init__(self, fd: int, data: bytes) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._left = memoryview(data)
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to write."""
        self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            self._left = self._left[os.write(self._fd, self._left[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = memoryview(b"")
        if not self._left:
            self.close()

    def close(self) -> None:
        """End the file."""
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1


@cache
def _devnull() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
