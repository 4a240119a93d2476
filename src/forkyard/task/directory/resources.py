"""What an environment table asks of the machine."""

from __future__ import annotations

from forkyard.task.data import TaskResources
from forkyard.task.directory.environment import Environment


def resources_of(environment: Environment) -> TaskResources:
    """The bounds of its sandbox."""
    return TaskResources(
        cpu=environment.cpus,
        memory=_gigabytes(environment.megabytes_of_memory),
        disk=_gigabytes(environment.megabytes_of_storage),
    )


def _gigabytes(megabytes: int | None) -> float | None:
    return None if megabytes is None else megabytes / 1024
