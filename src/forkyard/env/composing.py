"""The sandbox of a task of several containers: the service `main` of a compose project."""

from __future__ import annotations

from forkyard.env.boxes import limits_of
from forkyard.env.seat import Seat
from forkyard.errors import SandboxError
from forkyard.sandbox import NO_NETWORK, Sandbox
from forkyard.sandbox.promises import kept
from forkyard.task import Task


async def composed(seat: Seat, task: Task) -> Sandbox:
    """The task's project, brought up; closing the sandbox ends all of it. Raises ConfigError and SandboxError."""
    from forkyard.sandbox.docker import ComposePlan, DockerProvider

    provider, directory = seat.provider, task.compose_directory
    if directory is None or not isinstance(provider, DockerProvider):
        raise SandboxError(f"the provider {provider.name} brings up no compose project")
    plan = ComposePlan(
        directory,
        image=None if task.brings_image else await seat.image_for(task),
        env=dict(task.runtime_env()),
        limits=kept(limits_of(task), provider.features),
        network=task.setup_network or task.network or NO_NETWORK,
        workdir=task.data.workdir,
        timeout=task.build_seconds or 600.0,
    )
    return (await provider.compose(plan)).main
