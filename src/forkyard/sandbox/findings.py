"""What a provider finds out about the machine it is on, for `forkyard doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forkyard.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a provider looked for.

    `detail` says what is there, `mend` what to do about it where something is missing, with exact commands. Without a
    thing that is `needed` the provider does not work; without any other it promises less.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""
    needed: bool = False


@runtime_checkable
class Examined(Protocol):
    """A provider that can say what it found. One that has nothing to say need not have the method."""

    async def findings(self) -> list[Finding]:
        """What it looked for, the most important first; never raises for what is wrong with the machine."""
        ...


class Unusable(ConfigError):
    """A provider cannot be had on this machine: `what` is missing, and `mend` says how to get it."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}: {mend}")
        self.what, self.mend = what, mend
