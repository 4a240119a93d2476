"""Ports of a sandbox elsewhere, as sockets of this process.

They are Unix sockets that nobody else can reach: what serves the inside of a sandbox is for that sandbox alone.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import weakref
from pathlib import Path

_BACKLOG = 1024


class InsidePort(socket.socket):
    """Listens in the place of a port inside, and has its name."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port = port
        place = tempfile.mkdtemp(prefix="forkyard-port-")  # its owner's alone
        self.path = Path(place, "s")
        self._cleaned = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        try:
            self.bind(str(self.path))
            self.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise

    def getsockname(self) -> tuple[str, int]:
        """Where it is, seen from inside."""
        return "127.0.0.1", self.port

    def close(self) -> None:
        """Listen no more."""
        super().close()
        self._cleaned()

    def detach(self) -> int:
        """Not offered: whoever had the bare descriptor would leave the directory behind."""
        raise OSError("a port inside cannot be detached")

    def knock(self) -> socket.socket | None:
        """A connection to whoever serves it; None when nobody does (any more)."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            return None
        return sock
