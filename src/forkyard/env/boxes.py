"""The task as it is played at a seat, what it asks of its sandbox, and the sandbox a separate verifier works in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from forkyard.env.bounds import limits_of
from forkyard.env.composing import composed
from forkyard.env.seat import ImageFor, Seat
from forkyard.sandbox import Feature, Mount, Provider, Sandbox, SandboxSpec, image_provider
from forkyard.sandbox.promises import kept
from forkyard.task import Task


def seated_task(seat: Seat, task: Task) -> Task:
    """The task as it is played at a seat: with its deadlines, and its working directory where the task names none."""
    changed: dict[str, Any] = {}
    if given := seat.timeout.model_dump(exclude_none=True):
        changed["timeout"] = task.data.timeout.model_copy(update=given)
    if seat.workdir is not None and task.data.workdir is None:
        changed["workdir"] = seat.workdir
    return task.with_data(**changed) if changed else task


async def working_directory(seat: Seat, task: Task) -> str | None:
    """Where relative artifacts lie, as the task or its image says: the agent's sandbox is not asked."""
    if all(artifact.source.startswith("/") for artifact in task.data.artifacts):
        return None
    if task.data.workdir is not None or Feature.IMAGES not in seat.provider.features:
        return task.data.workdir or "/"
    image = await image_provider(seat.provider).image(await seat.image_for(task))
    return image.config.workdir if image else "/"


def verified_task(seat: Seat, task: Task) -> Task:
    """The task as a separate verifier's sandbox sees it."""
    task = task.for_verifier()
    changed = {"image": seat.verification.image, "workdir": seat.verification.workdir}
    given = {name: value for name, value in changed.items() if value is not None}
    return task.with_data(**given) if given else task


async def verifier_sandbox(seat: Seat, task: Task) -> Sandbox:
    """A fresh sandbox for a separate verifier of a `verified_task`."""
    own = seat.verification
    image = await image_of(own.image_for or seat.image_for, task)
    return await opened(own.provider or seat.provider, task, image, env=own.env)


async def image_of(image_for: ImageFor, task: Task) -> str:
    """The name of the image that a task's sandbox starts from, "" when its compose project has one."""
    return "" if task.origin.has_image else await image_for(task)


async def opened(
    provider: Provider, task: Task, image: str, *, env: Mapping[str, str] | None = None, mounts: Sequence[Mount] = ()
) -> Sandbox:
    """A sandbox such as a task asks for; `env` takes the place of the variables that it says."""
    if task.origin.compose is not None:
        return await composed(provider, task, image, env)
    spec = replace(sandbox_spec(task, image, provider.features), mounts=tuple(mounts))
    return await provider.create(spec if env is None else replace(spec, env=dict(env)))


def sandbox_spec(task: Task, image: str, features: Set[Feature]) -> SandboxSpec:
    """What a task asks of its sandbox; bounds that a provider with these features does not keep are left out."""
    return SandboxSpec(
        image=image,
        env=dict(task.runtime_env()),
        workdir=task.data.workdir,
        network=task.networks.at_first,
        limits=kept(limits_of(task), features),
    )
