"""A spawned command over descriptors of this host: written to, and pulled, without a task of its own."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox.tail import CHUNK, Tail, room, take
from forkyard.sandbox.values import ProgramResult, Stream, Terminal

Spend = Callable[[int], None]
_END_OF_INPUT = b"\x04"  # the key a terminal takes for it


class PipedProcess:
    """A `Process` (see the protocol). Whoever started it says when it has `ended`, and how it is killed."""

    def __init__(self, streams: Streams, kill: Callable[[], Awaitable[None]]) -> None:
        self._streams = streams
        self._kill = kill
        self._end: asyncio.Future[ProgramResult] = asyncio.get_running_loop().create_future()

    def ended(self, result: ProgramResult | SandboxError) -> list[Tail]:
        """It has ended, or its sandbox has; what still reads for children that outlive it.

        What is written in the result is given as its last output.
        """
        left = self._streams.finish()
        if isinstance(result, SandboxError):
            self._end.set_exception(result)
            self._end.exception()  # seen: nobody has to wait for it
        else:
            outputs = self._streams.outputs
            outputs.add("stdout", result.stdout_bytes)  # said in its place
            outputs.add("stderr", result.stderr_bytes)
            out, err = (outputs.totals.get(stream, 0) for stream in ("stdout", "stderr"))
            self._end.set_result(ProgramResult(result.exit_code, b"", b"", out, err, ended_by=result.ended_by))
        return left

    async def write(self, data: bytes) -> None:
        """Give it input (see the protocol)."""
        await self._streams.input.write(data)

    async def close_stdin(self) -> None:
        """End its input (see the protocol)."""
        if self._streams.terminal is None:
            self._streams.input.close()
        elif not self._end.done():
            await self._streams.input.write(_END_OF_INPUT)

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Its output in pieces (see the protocol)."""
        while (piece := await self._streams.outputs.next()) is not None:
            yield piece

    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size (see the protocol)."""
        size = Terminal(cols, rows)
        if self._streams.terminal is None:
            raise ValueError("the command has no terminal to be resized")
        if not self._end.done():
            set_size(self._streams.terminal, size)

    async def kill(self) -> None:
        """Kill the whole tree it started (see the protocol)."""
        if not self._end.done():
            with suppress(SandboxLost):  # which has ended it
                await self._kill()
            await asyncio.wait([self._end])

    async def wait(self) -> ProgramResult:
        """How it ended (see the protocol)."""
        return await asyncio.shield(self._end)


def over(result: ProgramResult) -> PipedProcess:
    """A process that never ran: it has ended, and what was to be said of it is its output."""

    async def kill() -> None:
        """There is nothing."""

    process = PipedProcess(Streams(-1, {}), kill)
    process.ended(result)
    return process


def set_size(terminal: int, size: Terminal) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


class Streams:
    """The host's ends of a command's streams, which are given up when it has ended."""

    def __init__(
        self, stdin: int, outputs: Mapping[Stream, int], spend: Spend | None = None, *, tty: bool = False
    ) -> None:
        self.input = Input(stdin)
        self.outputs = Outputs(outputs, spend)
        self.terminal = stdin if tty else None

    def finish(self) -> list[Tail]:
        """Take what the command left, and end its input; what reads on."""
        self.input.close()
        return self.outputs.finish()

    def close(self) -> None:
        """There will be no command."""
        for tail in self.finish():
            tail.close()


def piped(spend: Spend | None = None) -> tuple[Streams, list[int]]:
    """Three pipes: our ends, and those of a command."""
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
    except OSError as err:
        for fd in fds:
            os.close(fd)
        raise SandboxError(f"the host cannot give a command its streams: {err.strerror}") from err
    stdin, feed, out, stdout, err_, stderr = fds
    return Streams(feed, {"stdout": out, "stderr": err_}, spend), [stdin, stdout, stderr]


class Input:
    """The end of a pipe, or of a terminal, that is written to."""

    def __init__(self, fd: int) -> None:
        if fd >= 0:
            os.set_blocking(fd, False)
        self._fd = fd
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting for room; BrokenPipeError when nobody reads it."""
        left = memoryview(data)
        async with self._turn:
            while left:
                try:
                    left = left[self._put(left[:CHUNK]) :]
                except BlockingIOError:
                    await self._writable(self._fd)

    def _put(self, data: memoryview) -> int:
        if self._fd < 0:
            raise BrokenPipeError(errno.EPIPE, "the command takes no input any more")
        try:
            return os.write(self._fd, data)
        except OSError as err:
            if err.errno in (errno.EPIPE, errno.EIO):  # of a pipe, of a terminal
                raise BrokenPipeError(errno.EPIPE, "nobody reads the command's input") from None
            raise

    async def _writable(self, fd: int) -> None:
        """Wait for room, or until it is closed."""
        loop = asyncio.get_running_loop()
        self._woken.clear()
        loop.add_writer(fd, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if self._fd >= 0:
                loop.remove_writer(fd)

    def close(self) -> None:
        """Write no more; whoever still does is told."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._woken.set()


class Outputs:
    """The ends of pipes, or of a terminal, that are pulled: nothing is read before somebody wants it."""

    def __init__(self, fds: Mapping[Stream, int], spend: Spend | None) -> None:
        for fd in fds.values():
            os.set_blocking(fd, False)
        self._open = dict(fds)  # the one read last comes last
        self._spend = spend
        self._rest: deque[tuple[Stream, bytes]] = deque()
        self._finished = False
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self.totals: dict[Stream, int] = {}

    async def next(self) -> tuple[Stream, bytes] | None:
        """The next piece, when there is one; None when there will be none. Cancelled, it has taken nothing."""
        async with self._turn:
            while True:
                await asyncio.sleep(0)  # others have their turn, however much there is to read
                if piece := self._take():
                    return piece
                if not self._open:
                    return None
                await self._readable()

    def _take(self) -> tuple[Stream, bytes] | None:
        if self._rest:
            return self._rest.popleft()
        for stream, fd in list(self._open.items()):
            data = take(fd, CHUNK)
            if data:
                self._count(stream, data)
                self._open[stream] = self._open.pop(stream)
                return stream, data
            if data is not None:
                os.close(self._open.pop(stream))
        return None

    def _count(self, stream: Stream, data: bytes) -> None:
        self.totals[stream] = self.totals.get(stream, 0) + len(data)
        if self._spend:
            self._spend(len(data))

    async def _readable(self) -> None:
        """Wait until there is something to read, or the command has ended."""
        loop = asyncio.get_running_loop()
        self._woken.clear()
        waiting = list(self._open.values())
        for fd in waiting:
            loop.add_reader(fd, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if not self._finished:
                for fd in waiting:
                    loop.remove_reader(fd)

    def add(self, stream: Stream, data: bytes) -> None:
        """Something to be pulled that no command wrote."""
        if data:
            self._rest.append((stream, data))
            self._count(stream, data)

    def finish(self) -> list[Tail]:
        """The command has ended: keep what it left to be pulled, and read on only for its children, to forget it."""
        readers = []
        for stream, fd in self._open.items():
            asyncio.get_running_loop().remove_reader(fd)
            left = room(fd)
            while left > 0 and (data := take(fd, min(left, CHUNK))):
                left -= len(data)
                self.add(stream, data)
            reader = Tail(fd, 0, spend=self._spend)
            reader.finish()
            readers.append(reader)
        self._open.clear()
        self._finished = True
        self._woken.set()
        return readers
