"""What some sandboxes can do, or are, beyond the protocol: `isinstance` tells which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.values import EndedBy, Mount


@runtime_checkable
class StandsApart(Protocol):
    """A sandbox beside whose processes others can be started that they cannot reach."""

    async def apart(self, own: Sequence[str]) -> Sandbox | None:
        """The same machine for commands apart; None where the kernel cannot keep them so.

        What they see is this sandbox, its processes and network among it, but for the directories `own`, which are
        theirs alone and empty at first. Nobody who was there before can signal or trace them, or see what is in `own`;
        the other way round they can. Closing it ends what was started there, and nothing else; the sandbox cannot be
        stopped or forked by it, nor paused or forked meanwhile. SandboxError when it cannot be made.
        """
        ...


@runtime_checkable
class TellsLimits(Protocol):
    """A sandbox that knows which of its limits were hit, also by commands that went on or ended well."""

    def limits_hit(self) -> dict[EndedBy, int]:
        """How often its processes were killed for each of its limits since it was started."""
        ...


@runtime_checkable
class HasServices(Protocol):
    """A sandbox that is a service of a project, beside others: what `main` of a `Composed` should be."""

    async def service(self, name: str) -> Sandbox:
        """Another service of its project, also while this one is stopped; it ends with the project.

        ConfigError when none of that name runs, SandboxError when it cannot be reached.
        """
        ...


@runtime_checkable
class Remounts(Protocol):
    """A sandbox whose mounts can be others at its next start."""

    async def set_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Have these mounts, and no others, from the next start on, forks too. SandboxError unless it is stopped."""
        ...


@runtime_checkable
class BoundsDisk(Protocol):
    """A sandbox whose bound of what it writes to its disk can be another while it is there."""

    async def bound_disk(self, disk_mb: int | None) -> None:
        """Have this bound from now on, forks too; None is none."""
        ...


@runtime_checkable
class PlainDirectory(Protocol):
    """A sandbox without walls: a directory of this machine. It has no image, and what runs in it is the machine's."""

    @property
    def directory(self) -> Path:
        """Where its files lie."""
        ...
