"""When a running sandbox is to be paused: at the end of its lifetime, and after nobody was connected for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from forkyard.server.sandboxes.record import Record
from forkyard.server.sandboxes.states import Phase


def due(record: Record, connected: bool) -> tuple[float, str] | None:
    """The moment a sandbox is to be paused, as epoch seconds, and why; None when it is not."""
    if record.phase is not Phase.RUNNING:
        return None
    ends = []
    if record.expires_at is not None:
        ends.append((record.expires_at, f"its lifetime of {record.max_ttl_seconds} seconds is over"))
    if record.idle_ttl_seconds and not connected:
        told = f"nobody was connected to it for {record.idle_ttl_seconds} seconds"
        ends.append((record.last_active + record.idle_ttl_seconds, told))
    return min(ends, default=None)


class Alarm:
    """Calls once when a moment has come; `ring` is told why."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._at: tuple[float, str] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the handle is called

    def set(self, at: tuple[float, str] | None) -> None:
        """Ring then, and not when it was said before; None is never."""
        self._at = at
        if self._handle is not None and (at is None or at[0] < self._due):
            self._handle.cancel()
            self._handle = None
        if at is not None and self._handle is None:
            self._due = at[0]
            self._handle = asyncio.get_running_loop().call_later(max(0.0, at[0] - time.time()), self._called)

    def _called(self) -> None:
        """A moment has come, which was put off since if it is another than that at which to ring."""
        self._handle = None
        at, self._at = self._at, None
        if at is not None and at[0] > self._due:
            self.set(at)
        elif at is not None:
            self._ring(at[1])
