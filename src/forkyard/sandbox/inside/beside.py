"""What PID 1 does, done by a process beside another first one: that of a service, or of a sandbox."""

from __future__ import annotations

import socket
from typing import Any

from . import kernel, marks, pid1


class Beside(pid1.Pid1):
    """Speaks the protocol of PID 1 (see there). What it started stays its own, orphans too."""

    def __init__(self, sock: socket.SocketType) -> None:
        super().__init__(sock)
        kernel.reap_orphans()

    def _start(self, message: dict[str, Any], fds: list[int]) -> int:
        try:
            return super()._start(message, fds)
        finally:
            marks.take_off()
