"""What may be asked of a build beside its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.sandbox import NO_NETWORK, Network


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`file` is the Dockerfile, where it is not that of the context; `target` the stage to build, the last unless said.

    `arguments` are values for ARGs, `secrets` the bytes of each secret by its id. The image called `base` stands in for
    those the FROMs name. The RUNs have the `network`. `timeout` bounds the whole, in seconds. A `fresh` build runs
    every step again and replaces what earlier builds left. `on_step` is called with one sentence before each step.
    """

    file: Path | None = None
    target: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    base: str | None = None
    network: Network = NO_NETWORK
    timeout: float | None = None
    fresh: bool = False
    on_step: Callable[[str], None] | None = None

    def dockerfile(self, directory: Path) -> Path:
        """The Dockerfile of a build of `directory`."""
        return self.file or directory / "Dockerfile"
