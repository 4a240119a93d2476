"""What the format knows and this version cannot play yet: one list, one sentence each.

A task that uses one of these is read, and refused before a run starts. Making one of them work means deleting its
line here. What only some providers can do is no part of this: a task says it as a need.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from forkyard.sandbox import Feature
from forkyard.task.directory.contradictions import COMPOSE_FILE
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.templates import is_filled_in


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of task.toml, how to see that it asks for a feature, and which."""

    key: str
    asked: Callable[[TaskToml], bool]
    feature: str


def _with_credentials_inside(toml: TaskToml) -> bool:
    return any(
        _is_beside(server.url or "") and any(map(is_filled_in, server.headers.values()))
        for server in toml.environment.mcp_servers
    )


def _is_beside(url: str) -> bool:
    """Whether a URL leads to the sandbox itself, or a service beside it."""
    name = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return "." not in name or name.endswith(".localhost")


KEYS = (
    # Who serves there works in the sandbox, and would read them.
    _Key("environment.mcp_servers", _with_credentials_inside, "credentials of the host for a tool server inside"),
)


def refusals(toml: TaskToml, place: Callable[..., str]) -> tuple[str, ...]:
    """One sentence for each feature that is asked for; `place` says where a key was written."""
    asked = [f"{place(*item.key.split('.'))} asks for {item.feature}" for item in KEYS if item.asked(toml)]
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
