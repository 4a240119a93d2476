"""What is known of a sandbox beside what the Engine knows: kept as a label of its container."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from forkyard.sandbox.docker.images import RECORD_LABEL
from forkyard.sandbox.values import Limits, Mount, SandboxInfo


@dataclass(frozen=True, slots=True)
class Record:
    """How a sandbox was made. `key` names it until the Engine has given its container an id."""

    key: str
    name: str | None
    image: str
    parent: str | None
    created: float
    env: Mapping[str, str]
    workdir: str
    user: str
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    survives: bool = False

    @property
    def lasts(self) -> bool:
        """Whether it stays, stopped, when the process that runs it ends in good order."""
        return self.name is not None or self.survives

    def container_name(self, home: str) -> str:
        """A name for the container: one of its own, or the same for all in a home who want to be called `name`."""
        text = self.key if self.name is None else f"{home}:{self.name}"
        return f"forkyard-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"

    def info(self, container: str, state: str) -> SandboxInfo:
        """What a listing says of it."""
        return SandboxInfo(container, self.name, state, self.image, self.parent, self.created)

    def as_label(self) -> str:
        """As text, to be read by `from_label`."""
        return _RECORD.dump_json(self).decode()


_RECORD = TypeAdapter(Record)


def from_label(text: str) -> Record:
    """What `as_label` wrote; ValueError for anything else."""
    return _RECORD.validate_json(text)


def record_of(container: Mapping[str, Any]) -> Record | None:
    """The record of a container in a list of the Engine's; None of one that is none of ours."""
    try:
        return from_label(container["Labels"][RECORD_LABEL])
    except (KeyError, TypeError, ValueError):  # its image was made of a sandbox, it was not
        return None


def state_of(container: Mapping[str, Any]) -> str:
    """The state of a container in a list of the Engine's."""
    return "running" if container.get("State") == "running" else "stopped"
