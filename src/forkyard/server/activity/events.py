"""Events: one row for each thing that was done; the newest are kept."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from forkyard.server.state import State

Level = Literal["info", "warning", "error"]
KEPT = 10_000
_TRIM_EVERY = 100


class Event(BaseModel, frozen=True):
    """One thing that was done, of a disk or (with an empty `disk_id`) of none."""

    event_id: str
    account_id: str = "local"
    disk_id: str
    event_type: str
    level: Level
    created_at: datetime
    details: Mapping[str, str]


class Activity:
    """The record of events, in the server's state. Parts have it by `server.the(Activity)`."""

    def __init__(self, state: State, kept: int = KEPT) -> None:
        self._table = state.table("activity", Event)
        self._kept = kept
        self._since_trim = 0

    def record(self, event_type: str, disk_id: str = "", *, level: Level = "info", **details: str) -> None:
        """Add an event such as "disk.created"."""
        event = Event(
            event_id=_ordered_id(),
            disk_id=disk_id,
            event_type=event_type,
            level=level,
            created_at=datetime.now(UTC),
            details=details,
        )
        self._table.add(event.event_id, event)
        self._since_trim += 1
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            self._table.keep_newest(self._kept)

    def list(self, after: str | None = None) -> list[Event]:
        """What is kept, newest first, older than the event `after`."""
        return self._table.list(after, newest_first=True)


def _ordered_id() -> str:
    """A UUID of version 7: time first."""
    random = uuid.uuid4().int
    whole = (time.time_ns() // 1_000_000) << 80 | random & ((1 << 80) - 1)
    whole = whole & ~(0xF << 76) | 0x7 << 76
    whole = whole & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=whole))
