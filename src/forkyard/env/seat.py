"""A seat: an agent's configuration resolved to the objects that play it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forkyard.env.config import RetryConfig
from forkyard.harness import Harness
from forkyard.model import Sampling
from forkyard.sandbox import Provider, Sandbox
from forkyard.task import Task, TaskTimeout, VerifierMode
from forkyard.trace import AgentLimits, Trace

if TYPE_CHECKING:
    from forkyard.gateway import Budget, Gateway

ImageFor = Callable[[Task], Awaitable[str]]
"""Gives the name of the image a task's sandboxes start from, made when it is missing. Raises as a build does."""

OnPhase = Callable[[Trace, str], None]
"""Told when a rollout enters a phase: "fork", "setup", "agent", "grade", "done"."""


@dataclass(frozen=True, slots=True)
class Place:
    """A provider, and what gives the names of images there."""

    provider: Provider
    image_for: ImageFor


KeepDisk = Callable[[Trace, Task, Sandbox], Awaitable[None]]
"""Keeps the disk of a stopped sandbox for grading the rollout again; what goes wrong is said on its trace."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a separate verifier's sandbox differs from the agent's; None is "the same".

    `image_for` belongs to `provider`.
    `env` takes the place of the task's `runtime_env`; `retries` says how often a verification that failed, for a
    reason that is no verdict, is tried again.
    """

    provider: Provider | None = None
    image_for: ImageFor | None = None
    image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] | None = None
    retries: int = 2


@dataclass(frozen=True, slots=True)
class Seat:
    """Who sits there: a harness, a model with its limits, a provider, and how its work is graded.

    `timeout` replaces the task's deadlines where it gives one; `verifier` replaces the task's grading mode; `workdir`
    stands where the task names none.
    """

    harness: Harness
    provider: Provider
    image_for: ImageFor
    gateway: Gateway | None = None
    model: str | None = None
    sampling: Sampling = Sampling()
    limits: AgentLimits = AgentLimits()
    budget: Budget | None = None
    timeout: TaskTimeout = TaskTimeout()
    workdir: str | None = None
    verifier: VerifierMode | None = None
    verification: Verification = Verification()
    retries: RetryConfig = RetryConfig()
    keep_logs_in: Path | None = None
    keep_disk: KeepDisk | None = None


def grading_mode(seat: Seat, task: Task) -> VerifierMode:
    """Where the work on a task is graded that is done at a seat."""
    return seat.verifier or task.data.verifier
