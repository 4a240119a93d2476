"""Projects of several containers: what is to be brought up, and the provider that can.

A provider of another package that promises the feature `compose` has the method of `Composes`, and `main` of its
projects that of `forkyard.sandbox.HasServices` when the services beside it can be asked for evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from forkyard.errors import ConfigError
from forkyard.sandbox.network import NO_NETWORK, Network
from forkyard.sandbox.protocol import Sandbox
from forkyard.sandbox.values import Limits

FILES = ("docker-compose.yaml", "docker-compose.yml")


@dataclass(frozen=True, slots=True)
class ComposePlan:
    """What is to be brought up: the project in `directory`, whose service `main` is the agent's.

    `main` runs `image`, or what the directory's Dockerfile builds when that is None, unless the project's own file says
    something else. `env` is that of `main`; `variables` are what the file may name as ${NAME}, beside those of the
    format; nothing of this process's environment is. `timeout` bounds all of it.
    """

    directory: Path
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    network: Network = NO_NETWORK
    workdir: str | None = None
    user: str | None = None
    timeout: float = 600.0

    def file(self) -> Path:
        """The project's file; ConfigError when there is none."""
        for name in FILES:
            if (self.directory / name).is_file():
                return self.directory / name
        raise ConfigError(f"{self.directory} has no {FILES[0]}")


class Composed(Protocol):
    """A project that is up; closing `main` ends all of it."""

    @property
    def main(self) -> Sandbox:
        """The agent's service."""
        ...


@runtime_checkable
class Composes(Protocol):
    """A provider that brings up projects."""

    async def compose(self, plan: ComposePlan) -> Composed:
        """A project that is up. Raises ConfigError for one that cannot be, SandboxError for what failed."""
        ...
