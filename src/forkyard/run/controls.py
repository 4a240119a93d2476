"""Controls: harnesses without a model that play a task to see what it is worth, its solution or nobody at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from forkyard.env import Seat, SingleAgentEnv
from forkyard.harness import Harness
from forkyard.run.plan import Plan
from forkyard.run.prepare import prepared, resolved
from forkyard.sandbox import Provider
from forkyard.task import Task
from forkyard.trace import Slot, Trace


@dataclass(frozen=True, slots=True)
class Controls:
    """The tasks of a plan, and the seat that controls play them at; nothing of it is kept."""

    tasks: tuple[Task, ...]
    seat: Seat

    def problems(self, task: Task, harness: Harness) -> list[str]:
        """Why a harness cannot play a task, one sentence each."""
        return SingleAgentEnv().problems(task, {"agent": replace(self.seat, harness=harness)})

    async def play(self, task: Task, harness: Harness) -> Trace:
        """One rollout of a task to its end; what goes wrong is on its trace."""
        seats = {"agent": replace(self.seat, harness=harness)}
        return (await SingleAgentEnv().run_episode(task, Slot("control"), seats)).traces[0]


@asynccontextmanager
async def controls(plan: Plan, provider: Provider | None = None) -> AsyncIterator[Controls]:
    """Around controls of a plan's tasks, whose harness is `nop`. Raises ConfigError with every reason not to start."""
    async with prepared(resolved(plan), provider) as ready:
        await ready.tidied()
        yield Controls(ready.tasks, ready.seats["agent"])
