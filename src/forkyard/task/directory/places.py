"""Where in a task directory its data comes from, for sentences about what a machine cannot keep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forkyard.task.directory.contradictions import COMPOSE_FILE
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.problems import dotted, place, shown
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.table import Table

KEYS: dict[str, tuple[Key, ...]] = {
    "network_allow": (
        ("agent", "network_mode"),
        ("environment", "network_mode"),
        ("environment", "allow_internet"),
        ("verifier", "network_mode"),
    ),
    "image": (("environment", "docker_image"),),
    "agent_user": (("agent", "user"), ("verifier", "user")),
    "verifier": (("verifier", "environment_mode"), ("verifier", "environment")),
    "resources.gpu": (("environment", "gpus"),),
    "tpu": (("environment", "tpu"),),
    "os": (("environment", "os"),),
    "resources.cpu": (("environment", "cpus"),),
    "resources.memory": (("environment", "memory_mb"), ("environment", "memory")),
    "resources.disk": (("environment", "storage_mb"), ("environment", "storage")),
}
"""The keys of task.toml that decide a field of TaskData, the one that wins first."""


def written_at(field: str, root: Path, toml: TaskToml, lines: Mapping[Key, int]) -> str:
    """`file, line N: key = value` of a field of the data; the file that decides it when no key is written."""
    path = root / "task.toml"
    for key in KEYS.get(field, ()):
        if key in lines:
            value = getattr(getattr(toml, str(key[0])), str(key[1]))
            said = "" if isinstance(value, Table) else f" = {shown(value)}"
            return f"{place(path, key, lines)}: {dotted(key)}{said}"
    files = {"image": "environment/Dockerfile", "compose": COMPOSE_FILE}
    return str(root / files.get(field, path.name))
