"""Running a program of this machine to its end: for a bounded time, with bounded output, and nothing left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

_LINGER = 1.0  # for the output of what a program left in a session of its own, which has no end of its own


async def run(
    argv: Sequence[str],
    *,
    seconds: float,
    keep: int,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    patience: float = 0.0,
) -> tuple[int, bytes, bytes]:
    """The exit code of a program, and the last `keep` bytes of its output and of its complaints.

    It has a session of its own, and whatever of that is left is killed as soon as the program has ended; earlier when
    the caller is cancelled or `seconds` have passed, which is a TimeoutError. It is then asked to end first, and has
    `patience` seconds for it. OSError when it cannot be started.
    """
    watched, pipe = _Watched(keep), asyncio.subprocess.PIPE
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            lambda: watched,
            *argv,
            env=env,
            stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    )
    try:
        transport, _ = await asyncio.shield(starting)  # cancelled within, asyncio would kill the one process
        if stdin:
            _write(transport, stdin)
        async with asyncio.timeout(seconds):
            await watched.ended.wait()
        kill_session(transport.get_pid())
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                await watched.silent.wait()
        code = transport.get_returncode()
        transport.close()
    except BaseException:
        await asyncio.shield(_end(starting, watched.ended, patience))
        raise
    assert code is not None
    return code, bytes(watched.said[1]), bytes(watched.said[2])


def kill_session(pid: int) -> None:
    """Kill what is left of the session that the process `pid` began."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class _Watched(asyncio.SubprocessProtocol):
    """What is known of a program: `ended` once it has, `silent` once nobody can say more in its name.

    asyncio's own Process.wait() waits for both, which a child that keeps the streams can delay for ever.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.said = {1: bytearray(), 2: bytearray()}
        self.ended, self.silent = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the end of what it says."""
        said = self.said[fd]
        said += data
        del said[: -self._keep]

    def process_exited(self) -> None:
        """Its exit code is known."""
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and every stream of it."""
        self.silent.set()


_Started = tuple[asyncio.SubprocessTransport, _Watched]


def _write(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    stdin = transport.get_pipe_transport(0)
    assert isinstance(stdin, asyncio.WriteTransport)
    stdin.write(data)
    stdin.close()


async def _end(starting: asyncio.Future[_Started], ended: asyncio.Event, patience: float) -> None:
    await asyncio.wait([starting])
    if starting.exception() is not None:
        return
    transport, _ = starting.result()
    if patience and not ended.is_set():
        with suppress(ProcessLookupError):
            os.killpg(transport.get_pid(), signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await ended.wait()
    kill_session(transport.get_pid())
    await ended.wait()
    transport.close()
