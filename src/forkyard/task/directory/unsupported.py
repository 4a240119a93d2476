"""What the format knows and this version cannot run yet: one list, one sentence each.

A task that uses one of these is refused when it is loaded. Making one of them work means deleting its line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forkyard.task.directory.schema import TaskToml


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of task.toml, how to see that it asks for a feature, and which."""

    key: str
    asked: Callable[[TaskToml], bool]
    feature: str


_SEPARATE = "a separate verifier sandbox"

KEYS = (
    _Key("steps", lambda toml: bool(toml.steps), "several steps"),
    _Key("verifier.environment_mode", lambda toml: toml.verifier.environment_mode == "separate", _SEPARATE),
    _Key("verifier.environment", lambda toml: toml.verifier.separate_by_environment, _SEPARATE),
    _Key("verifier.collect", lambda toml: bool(toml.verifier.collect), "collect hooks"),
    _Key("environment.gpus", lambda toml: bool(toml.environment.gpus), "GPUs"),
    _Key("environment.tpu", lambda toml: toml.environment.tpu is not None, "TPUs"),
    _Key("environment.os", lambda toml: toml.environment.os == "windows", "Windows"),
    _Key("environment.mcp_servers", lambda toml: bool(toml.environment.mcp_servers), "tool servers"),
)
FILES = {
    "environment/docker-compose.yaml": "several containers",
    "pre_artifacts.sh": "a collection script",
    "trajectory.json": "a conversation to continue",
}


def refusals(toml: TaskToml, root: Path, place: Callable[..., str]) -> list[str]:
    """One sentence for each feature that is asked for; `place` says where a key was written."""
    asked = [f"{place(*item.key.split('.'))} asks for {item.feature}" for item in KEYS if item.asked(toml)]
    asked += [f"{root / name} asks for {feature}" for name, feature in FILES.items() if (root / name).exists()]
    return [f"{request}, which this version cannot run yet" for request in asked]
