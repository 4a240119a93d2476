"""The sandbox of a task of several containers: the service `main` of a compose project."""

from __future__ import annotations

from collections.abc import Mapping

from forkyard.env.bounds import limits_of
from forkyard.errors import SandboxError
from forkyard.sandbox import Provider, Sandbox
from forkyard.sandbox.composing import ComposePlan, Composes
from forkyard.sandbox.promises import kept
from forkyard.task import Task


async def composed(provider: Provider, task: Task, image: str, env: Mapping[str, str] | None = None) -> Sandbox:
    """The task's project, brought up; closing the sandbox ends all of it. Raises ConfigError and SandboxError.

    `image` is "" when the project has one. `env` takes the place of the variables that the task says.
    """
    origin = task.origin
    if origin.compose is None or not isinstance(provider, Composes):
        raise SandboxError(f"the provider {provider.name} brings up no compose project")
    plan = ComposePlan(
        origin.compose,
        image=image or None,
        env=dict(task.runtime_env() if env is None else env),
        limits=kept(limits_of(task), provider.features),
        network=task.networks.at_first,
        workdir=task.data.workdir,
        timeout=origin.seconds or 600.0,
    )
    return (await provider.compose(plan)).main
