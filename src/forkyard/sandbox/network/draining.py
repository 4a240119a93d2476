"""Sandboxes whose connections can be waited for."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Drains(Protocol):
    """A sandbox of a provider that can do it."""

    async def drained(self) -> None:
        """Wait until it has no connection any more to what its network says is waited for (`Network.drain`)."""
        ...
