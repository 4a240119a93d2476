"""What a command writes, read as it comes: the last bytes are kept, all are counted, and who listens hears them."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable

from forkyard.sandbox.values import OnOutput

CHUNK = 1 << 16
PATIENCE = 0.005  # seconds a pipe fills unread: most commands end sooner, and are read once, at their end


def take(fd: int, count: int) -> bytes | None:
    """What is there to read now, up to `count` bytes; b"" at the end, and None when nothing is there yet."""
    try:
        return os.read(fd, count)
    except BlockingIOError:
        return None
    except OSError as err:
        if err.errno == errno.EIO:  # a terminal that nobody has open any more
            return b""
        raise


def room(fd: int) -> int:
    """How much may be there to read at once."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    except OSError:  # no pipe but a terminal, whose buffers hold about as much
        return CHUNK


class Tail:
    """Reads a pipe to its end, keeping the last `limit` bytes and counting all of them.

    A child that outlives its command may hold the pipe: after `finish` the reader goes on and forgets what it reads,
    so that such a child neither blocks nor dies of a closed pipe. `spend` is told the size of whatever is read.
    """

    def __init__(
        self,
        fd: int,
        limit: int,
        hear: Callable[[bytes], None] | None = None,
        spend: Callable[[int], None] | None = None,
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._limit = limit
        self._hear = hear
        self._spend = spend
        self._chunks: deque[bytearray] = deque()  # none much smaller than CHUNK, however small the pieces come
        self._kept = 0
        self._finished = self._heard = False
        self._loop = asyncio.get_running_loop()
        self.total = 0
        self._listening = self._loop.call_later(PATIENCE, self._listen)

    def _listen(self) -> None:
        self._heard = True
        self._loop.add_reader(self._fd, self._read)

    @property
    def open(self) -> bool:
        """Whether somebody may still write."""
        return self._fd >= 0

    @property
    def over(self) -> bool:
        """Whether more than the limit has come."""
        return self.total > self._limit

    def finish(self) -> bytes:
        """What is kept, after taking what the command left in the pipe; bytes that come later are not its own."""
        left = room(self._fd) if self.open else 0
        while left > 0 and (count := self._read(min(left, CHUNK))):
            left -= count
        self._finished = True
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data[-self._limit :] if self._limit else b""

    def close(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            self._listening.cancel()
            if self._heard:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self, count: int = CHUNK) -> int:
        """Take what is there; the number of bytes, 0 when there is nothing (more) to take now."""
        data = take(self._fd, count) if self.open else b""
        if data is None:
            return 0
        if not data:
            self.close()
        elif not self._finished:
            self._keep(data)
        if self._spend and data:
            self._spend(len(data))
        return len(data)

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        if self._chunks and len(self._chunks[-1]) + len(data) <= CHUNK:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))
        self._kept += len(data)
        while self._chunks and self._kept - len(self._chunks[0]) >= self._limit:
            self._kept -= len(self._chunks.popleft())
        if self._hear:
            self._hear(data)


class Allowance:
    """Bytes that all commands of a sandbox together may write; `over` is called whenever more come than that."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.over: Callable[[], None] = lambda: None

    @property
    def used_up(self) -> bool:
        """Whether more was written."""
        return self._left < 0

    def spend(self, count: int) -> None:
        """So many bytes were written."""
        self._left -= count
        if self._left < 0:
            self.over()


class Listener:
    """Passes output on to `on_output`. The first error it raises is kept, `stop` is called, and it hears no more."""

    def __init__(self, on_output: OnOutput | None, stop: Callable[[], object]) -> None:
        self._on_output, self._stop = on_output, stop
        self.error: Exception | None = None

    def of(self, stream: str) -> Callable[[bytes], None] | None:
        """What hears the pieces of one stream; None when nobody listens."""
        on_output = self._on_output
        if on_output is None:
            return None

        def hear(data: bytes) -> None:
            if self.error is None:
                try:
                    on_output(stream, data)
                except Exception as err:  # noqa: BLE001 - the caller's own error: raised to it by `run`
                    self.error = err
                    self._stop()

        return hear
