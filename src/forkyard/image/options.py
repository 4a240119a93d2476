"""What may be asked of a build beside its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`file` is the Dockerfile, where it is not that of the context; `target` the stage to build, the last unless said.

    `arguments` are values for ARGs, `secrets` the bytes of each secret by its id. `run_seconds` bounds every RUN by
    itself. A `fresh` build runs every step again and replaces what earlier builds left. `on_step` is called with one
    sentence before each step.
    """

    file: Path | None = None
    target: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    run_seconds: float | None = None
    fresh: bool = False
    on_step: Callable[[str], None] | None = None

    def dockerfile(self, directory: Path) -> Path:
        """The Dockerfile of a build of `directory`."""
        return self.file or directory / "Dockerfile"
