"""Appends wait in line for each object, and those that wait are written together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from forkyard.disk.errors import DiskError
from forkyard.disk.values import About, ObjectInfo

_TOGETHER = 4 << 20


@dataclass
class Waiting:
    """An append that waits for its turn; `existed`: there was an object when it came."""

    data: bytes
    about: About
    existed: bool
    outcome: asyncio.Future[ObjectInfo] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


Outcome = ObjectInfo | Exception
Write = Callable[[str, Sequence[Waiting]], Awaitable[list[Outcome]]]
"""Appends to one object in this order, each whole or not at all; an outcome for each."""


class Appends:
    """Those of one disk, by key."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[str, list[Waiting]] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}

    async def append(self, key: str, waiting: Waiting) -> ObjectInfo:
        """Wait in line and be written. Cancelled, it is written all the same, or not."""
        self._waiting.setdefault(key, []).append(waiting)
        if key not in self._writers:
            self._writers[key] = asyncio.create_task(self._work(key))
        return await waiting.outcome

    async def close(self) -> None:
        """Wait until all that came is written."""
        while self._writers:
            await asyncio.wait(list(self._writers.values()))

    async def _work(self, key: str) -> None:
        try:
            while queue := self._waiting.get(key):
                group = _first_of(queue)
                del queue[: len(group)]
                outcomes: list[Outcome]
                try:
                    outcomes = await self._write(key, group)
                except Exception as err:  # noqa: BLE001  it is told to those who wait
                    outcomes = [err] * len(group)
                _tell(group, outcomes)
        finally:
            for waiting in self._waiting.pop(key, []):  # only when this task was cancelled
                waiting.outcome.cancel()
            del self._writers[key]


def _tell(group: Sequence[Waiting], outcomes: Sequence[Outcome]) -> None:
    for waiting, outcome in zip(group, outcomes, strict=True):
        if waiting.outcome.done():  # its caller has gone
            continue
        if isinstance(outcome, DiskError):  # each gets one of its own, to raise and to note things on
            waiting.outcome.set_exception(DiskError(outcome.code, str(outcome)))
        elif isinstance(outcome, Exception):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)


def _first_of(queue: Sequence[Waiting]) -> list[Waiting]:
    group, size = [queue[0]], len(queue[0].data)
    for waiting in queue[1:]:
        size += len(waiting.data)
        if size > _TOGETHER:
            break
        group.append(waiting)
    return group


def lost_race(key: str) -> DiskError:
    """The error of an append that came before there was an object, and whose turn came after another had made it."""
    return DiskError(
        "OperationAborted",
        f"there was no object {key!r} when this append came, and another one made it meanwhile; nothing of this one "
        "was written: send it again",
    )
