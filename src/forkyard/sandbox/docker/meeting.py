"""Where a container's PID 1 calls the host: a socket in a directory that is mounted into that container alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

_NAME = "agent"


class Meeting:
    """A socket that listens while it is entered, and takes one call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sock = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._remove()
            self._sock.bind(f"/proc/self/fd/{folder}/{_NAME}")  # its own path may be longer than a socket's may be
            (self._directory / _NAME).chmod(0o666)  # where containers have users of their own, root is one of them
            self._sock.listen(1)
            self._sock.setblocking(False)
        except BaseException:
            self._sock.close()
            raise
        finally:
            os.close(folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._sock.close()
        self._remove()

    def _remove(self) -> None:
        (self._directory / _NAME).unlink(missing_ok=True)

    async def call(self) -> socket.socket:
        """The first call."""
        sock, _ = await asyncio.get_running_loop().sock_accept(self._sock)
        return sock


def make_place(directory: Path) -> None:
    """Make the directory of one container's meeting."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)


def remove_place(directory: Path) -> None:
    """Remove it with what is in it."""
    shutil.rmtree(directory, ignore_errors=True)
