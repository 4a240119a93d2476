"""Disks that outlive the sandboxes that wrote them, so that what is on them can be looked at again later.

Keeping one costs the room of what its sandbox changed. A policy of age and size bounds it, and the oldest go first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forkyard.errors import ConfigError
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.values import SandboxSpec
from forkyard.values import counted

DAYS_VARIABLE, GB_VARIABLE = "FORKYARD_KEEP_DAYS", "FORKYARD_KEEP_GB"
DAYS, GB = 7.0, 10.0


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """How long disks are kept, and how many bytes of them; nothing is kept when either is 0."""

    seconds: float = DAYS * 86400
    total: float = GB * 1e9
    most: int = 20_000  # disks: each takes a dozen inodes, however little is on it

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return self.seconds > 0 and self.total > 0

    def __str__(self) -> str:
        if not self.keeps:
            return "none"
        return f"for {self.seconds / 86400:g} days, {self.total / 1e9:g} GB and {self.most:,} of them at most"


def keep_policy() -> KeepPolicy:
    """The policy of this process: `FORKYARD_KEEP_DAYS` and `FORKYARD_KEEP_GB`. Raises ConfigError for no number."""
    return KeepPolicy(_number(DAYS_VARIABLE, DAYS) * 86400, _number(GB_VARIABLE, GB) * 1e9)


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"{variable}={text}: expected a number that is not negative, as {default:g}")
    return value


@dataclass(frozen=True, slots=True)
class KeptDisk:
    """One of them. `size` counts the bytes that nobody else needs, once somebody has looked."""

    name: str
    created: float
    size: int | None


def told(disks: Collection[KeptDisk], policy: KeepPolicy) -> str:
    """`12 disks of rollouts, 0.7 MB (for 7 days, ...)`; those not measured yet count as nothing."""
    size = sum(disk.size or 0 for disk in disks)
    return f"{counted(len(disks), 'disk')} of rollouts, {size / 1e6:.1f} MB ({policy})"


@runtime_checkable
class KeepsDisks(Protocol):
    """A provider that can keep disks. They are no sandboxes: nothing lists, starts or sweeps them as such."""

    async def keep_disk(self, sandbox: Sandbox, name: str, without_env: Collection[str] = ()) -> None:
        """Keep the disk of a stopped sandbox under a name of its own, whatever becomes of the sandbox.

        Its environment is kept as well, but for the variables named. Raises SandboxError when it is not stopped, and
        ConfigError when the name is taken.
        """
        ...

    async def from_kept(self, name: str, spec: SandboxSpec) -> Sandbox:
        """A running sandbox on a fork of a kept disk, all but the image as `spec` says.

        Raises ConfigError when there is no such disk, or nobody knows whether it survived a restart of the machine.
        """
        ...

    async def kept_disks(self) -> list[KeptDisk]:
        """All that can be had, oldest first."""
        ...

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        """Forget those that are too old, and the oldest while all are too large together; those that went."""
        ...
