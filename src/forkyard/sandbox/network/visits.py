"""What a sandbox asked for, and what it got: kept short, since the sandbox decides how much it asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 200


@dataclass(frozen=True, slots=True)
class Visit:
    """A host that was asked for, `count` times; `refused` says why it was not reached, None when it was."""

    host: str
    port: int
    refused: str | None
    count: int = 1


class Visits:
    """The first `KEPT` different ones."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, str | None], int] = {}

    def __iter__(self) -> Iterator[Visit]:
        return (Visit(*key, count) for key, count in self._counts.items())

    def record(self, host: str, port: int, refused: str | None) -> None:
        """Count one."""
        key = (host, port, refused)
        if key in self._counts or len(self._counts) < KEPT:
            self._counts[key] = self._counts.get(key, 0) + 1
