"""Moments of a sandbox's disk that were handed out: whoever was told a checkpoint may fork it a little later.

The client's fork is three requests: pause, which names a checkpoint, fork, which asks for it, and resume. When several
clients fork one running sandbox at once, the first resumes it while others have not forked yet. For them the moment is
kept, as a fork that is made before the sandbox goes on and is forked in its place; it is forgotten soon after.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from forkyard.errors import ForkyardError
from forkyard.sandbox import Sandbox

_KEPT_SECONDS = 60.0


class Moments:
    """Those of one sandbox."""

    def __init__(self, box_name: str) -> None:
        self._box_name = box_name
        self._kept: dict[str, Sandbox] = {}
        self._told = 0  # how many were told the checkpoint it rests at, and have not forked it
        self._shared = False  # more than the one that brought it to rest
        self._dropping: set[asyncio.Task[None]] = set()

    def hand_out(self, checkpoint: str | None) -> None:
        """Somebody is told a checkpoint: of a sandbox that rests, or, for None, of one that is brought to rest now."""
        self._shared = checkpoint is not None
        self._told = self._told + 1 if self._shared else 1

    def taken(self, checkpoint: str) -> Sandbox | None:
        """What a fork of that checkpoint is made of, if it is kept apart from the sandbox."""
        self._told = max(0, self._told - 1)
        return self._kept.get(checkpoint)

    async def keep(self, checkpoint: str | None, sandbox: Sandbox) -> None:
        """The sandbox, which rests at a checkpoint, goes on now: keep the moment for those who were told of it."""
        wanted, self._told, self._shared = self._shared and self._told > 0, 0, False
        if checkpoint is None or not wanted:
            return
        self._kept[checkpoint] = await sandbox.fork(f"{self._box_name}-{checkpoint}")
        task = asyncio.create_task(self._drop_later(checkpoint))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def drop_all(self) -> None:
        """Forget every moment."""
        for task in self._dropping:
            task.cancel()
        for checkpoint in list(self._kept):
            await self._drop(checkpoint)

    async def _drop_later(self, checkpoint: str) -> None:
        await asyncio.sleep(_KEPT_SECONDS)
        await self._drop(checkpoint)

    async def _drop(self, checkpoint: str) -> None:
        if (moment := self._kept.pop(checkpoint, None)) is not None:
            with suppress(ForkyardError):  # it has ended already
                await moment.close()
