"""What the format knows and this version cannot play yet: one list, one sentence each.

A task that uses one of these is read, and refused before a run starts. Making one of them work means deleting its
line here. What only some providers can do is no part of this: a task says it as a need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forkyard.sandbox import Feature
from forkyard.task.directory.contradictions import COMPOSE_FILE
from forkyard.task.directory.schema import TaskToml


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of task.toml, how to see that it asks for a feature, and which."""

    key: str
    asked: Callable[[TaskToml], bool]
    feature: str


def _with_credentials(toml: TaskToml) -> bool:
    return any("${" in text for server in toml.environment.mcp_servers for text in server.headers.values())


KEYS = (
    # What the host's variables hold would have to lie in the sandbox.
    _Key("environment.mcp_servers", _with_credentials, "tool servers with credentials of the host"),
)
FILES = {
    "trajectory.json": "a conversation to continue",
}


def refusals(toml: TaskToml, root: Path, place: Callable[..., str]) -> tuple[str, ...]:
    """One sentence for each feature that is asked for; `place` says where a key was written."""
    asked = [f"{place(*item.key.split('.'))} asks for {item.feature}" for item in KEYS if item.asked(toml)]
    asked += [f"{root / name} asks for {feature}" for name, feature in FILES.items() if (root / name).exists()]
    return tuple(f"{request}, which this version cannot run yet" for request in asked)


def machine_needs(toml: TaskToml, root: Path) -> frozenset[Feature]:
    """The features of a provider that only some tasks of the format ask for."""
    environment = toml.environment
    asked = {
        Feature.GPUS: bool(environment.gpus),
        Feature.TPU: environment.tpu is not None,
        Feature.WINDOWS: environment.os == "windows",
        Feature.COMPOSE: (root / COMPOSE_FILE).exists(),
    }
    return frozenset(feature for feature, wanted in asked.items() if wanted)
