"""The task as it is played at a seat, what it asks of its sandbox, and the sandbox a separate verifier works in."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from forkyard.env.seat import Seat
from forkyard.sandbox import NO_NETWORK, Feature, Limits, Sandbox, SandboxSpec, image_provider
from forkyard.sandbox.promises import kept
from forkyard.task import Task

RESOURCES = {"cpus": "cpu", "memory_mb": "memory", "disk_mb": "disk"}
"""The bounds a task can ask for, and the fields of `TaskResources` it does so by."""


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
    provider, image_for = own.provider or seat.provider, own.image_for or seat.image_for
    spec = sandbox_spec(task, await image_for(task), provider.features)
    return await provider.create(spec if own.env is None else replace(spec, env=dict(own.env)))


def sandbox_spec(task: Task, image: str, features: Set[Feature]) -> SandboxSpec:
    """What a task asks of its sandbox; bounds that a provider with these features does not keep are left out."""
    return SandboxSpec(
        image=image,
        env=dict(task.runtime_env()),
        workdir=task.data.workdir,
        network=task.setup_network or task.network or NO_NETWORK,
        limits=kept(limits_of(task), features),
    )


def limits_of(task: Task) -> Limits:
    """The bounds a task asks for. Raises ConfigError for numbers too small to be any."""
    asked = task.data.resources
    given = {bound: getattr(asked, field) for bound, field in RESOURCES.items()}
    return Limits(**{bound: _megabytes(value) if bound.endswith("_mb") else value for bound, value in given.items()})


def _megabytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, round(gigabytes * 1024))
