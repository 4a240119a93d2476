"""What a task asks of the machine beyond its data: what its sandboxes are made from, and what they reach when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forkyard.sandbox import NO_NETWORK, Network


@dataclass(frozen=True, slots=True)
class Origin:
    """What a task's sandbox is made from, when no image is named.

    `build` is a directory with the Dockerfile, `compose` one of a compose project whose service `main` is the sandbox;
    `has_image` says that the project itself says what `main` is made of. `seconds` is how long the making may take,
    None leaves that to who makes it.
    """

    build: Path | None = None
    compose: Path | None = None
    has_image: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Networks:
    """What a task's sandbox may reach while its agent acts, None when the task does not say, which is nothing.

    `setup` is until then, and `verifier` from then on, where that is another.
    """

    agent: Network | None = None
    setup: Network | None = None
    verifier: Network | None = None

    @property
    def at_first(self) -> Network:
        """What the sandbox starts with."""
        return self.setup or self.agent or NO_NETWORK

    @property
    def at_last(self) -> Network:
        """What it has while its verifier works."""
        return self.verifier or self.agent or NO_NETWORK

    @property
    def asked(self) -> frozenset[Network]:
        """All that are named."""
        return frozenset(network for network in (self.agent, self.setup, self.verifier) if network is not None)
