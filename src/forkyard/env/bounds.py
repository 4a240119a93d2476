"""The bounds that a task asks for its sandbox."""

from __future__ import annotations

from forkyard.sandbox import Limits
from forkyard.task import Task

RESOURCES = {"cpus": "cpu", "memory_mb": "memory", "disk_mb": "disk"}
"""The bounds a task can ask for, and the fields of `TaskResources` it does so by."""


def limits_of(task: Task) -> Limits:
    """The bounds a task asks for. Raises ConfigError for numbers too small to be any."""
    asked = task.data.resources
    given = {bound: getattr(asked, field) for bound, field in RESOURCES.items()}
    return Limits(**{bound: _megabytes(value) if bound.endswith("_mb") else value for bound, value in given.items()})


def _megabytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, round(gigabytes * 1024))
