"""Running commands inside a sandbox: pipes owned by the host, output bounded, the tree killed at the deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.common import not_started
from forkyard.sandbox.held.channel import Channel
from forkyard.sandbox.held.orders import Early, Order
from forkyard.sandbox.process import PipedProcess, Streams, piped, set_size
from forkyard.sandbox.tail import CHUNK, Allowance, Listener, Tail
from forkyard.sandbox.values import OnOutput, ProgramResult, Terminal

HELD = 64  # pipes of leftover children that the host keeps reading, in each sandbox
Settle = Callable[[ProgramResult], ProgramResult]
_MASTER = os.makedev(5, 2)  # what the host's end of a terminal is


class Commands:
    """The commands of one live sandbox, and the pipes their leftover children still hold."""

    def __init__(self, channel: Channel, give_up: Callable[[str], None]) -> None:
        self._channel = channel
        self._give_up = give_up
        self._readers: list[Tail] = []
        self._watches: set[asyncio.Task[None]] = set()  # one for each spawned process
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
        order = Order(self._channel, self._give_up)
        early = Early(order)
        spend = self._spend if op == "run" else None
        pipes = _Pipes(stdin, limits, on_output, stop_at_limit, spend, early.enough)
        try:
            async with order:
                await order.give(op, pipes.theirs, fields)
                pipes.started()
                early.after(timeout)
                status = await order.end()
        finally:
            early.cancel()
            kept = pipes.finish()
            self._hold([*self._readers, *pipes.readers])
        if pipes.listener.error:
            raise pipes.listener.error
        (out, out_total), (err, err_total) = kept
        return ProgramResult(status, out, err, out_total, err_total, early.timed_out)

    async def spawn(self, fields: dict[str, Any], terminal: Terminal | None, settle: Settle) -> PipedProcess:
        """Start a command that whoever has it feeds and pulls; errors as with `run`. `settle` has the last word."""
        ours, theirs = await self._streams(terminal)
        order = Order(self._channel, self._give_up)
        try:
            async with order:
                try:
                    await order.give("run", theirs, {**fields, "terminal": terminal is not None})
                finally:
                    for fd in set(theirs):
                        os.close(fd)
                await order.begun()
        except BaseException:
            ours.close()
            raise
        process = PipedProcess(ours, order.kill)
        watch = asyncio.get_running_loop().create_task(self._watch(order, process, fields["argv"][0], settle))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return process

    async def _streams(self, terminal: Terminal | None) -> tuple[Streams, list[int]]:
        """A command's three streams, our ends and its own."""
        if terminal is None:
            return piped(self._spend)
        try:
            _, fds = await self._channel.request("terminal")
        except OSError as err:
            raise SandboxError(f"a command can have no terminal: {err.strerror or err}") from err
        master, slave = fds
        try:
            if os.fstat(master).st_rdev != _MASTER:  # before anything is asked of it
                raise SandboxError("the sandbox gave what is no terminal")
            set_size(master, terminal)
            return Streams(master, {"stdout": os.dup(master)}, self._spend, tty=True), [slave, slave, slave]
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    async def _watch(self, order: Order, process: PipedProcess, program: str, settle: Settle) -> None:
        """See to the end of a spawned process."""
        end: ProgramResult | SandboxError = SandboxLost("nobody looks after the sandbox any more")
        try:
            async with order:
                end = settle(ProgramResult(await order.end()))
        except OSError as err:  # gVisor finds out late what it cannot start
            end = _never_began(program, err)
        except SandboxError as err:
            end = err
        finally:
            self._hold([*self._readers, *process.ended(end)])

    @property
    def _spend(self) -> Callable[[int], None] | None:
        return self.allowance.spend if self.allowance else None

    def _hold(self, readers: list[Tail]) -> None:
        """Keep the pipes that leftover children still write to, but no more than the host can spare."""
        still = [reader for reader in readers if reader.open]
        for reader in still[:-HELD]:
            reader.close()
        self._readers = still[-HELD:]


def _never_began(program: str, err: OSError) -> ProgramResult | SandboxError:
    try:
        return not_started(program, err)
    except ValueError as said:
        return SandboxError(str(said))


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
