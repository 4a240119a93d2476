"""An agent: a seat in an env, with everything it needs to play a rollout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.harness import Harness, ModelContext
from forkyard.sandbox import Provider
from forkyard.task import Task, TaskTimeout, VerifierMode
from forkyard.trace import Slot, Trace

ImageFor = Callable[[Task], Awaitable[str]]
"""Gives the name of the image a task's sandboxes start from, made when it is missing. Raises as a build does."""

OnPhase = Callable[[Trace, str], None]
"""Told when a rollout enters a phase: "fork", "setup", "agent", "grade", "done"."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Who sits there: a harness, a model with its limits, a provider, and how its work is graded.

    `timeout` replaces the task's deadlines where it gives one; `verifier` replaces the task's grading mode.
    """

    harness: Harness
    provider: Provider
    image_for: ImageFor
    context: ModelContext = ModelContext()
    timeout: TaskTimeout = TaskTimeout()
    verifier: VerifierMode | None = None
    keep_logs_in: Path | None = None


@dataclass(slots=True)
class Agent:
    """One seat during one episode. `run` may be called any number of times; each call leaves a trace."""

    name: str
    config: Seat
    slot: Slot
    on_phase: OnPhase
    traces: list[Trace]
    play: Callable[[Seat, Task, Trace, OnPhase], Awaitable[None]] = field(repr=False)

    async def run(self, task: Task) -> Trace:
        """Play one rollout of `task` to its end and return its trace, which also joins the episode.

        What goes wrong is on the trace; only cancellation is raised.
        """
        trace = self.mint(task)
        await self.play(self.config, task, trace, self.on_phase)
        self.traces.append(trace)
        return trace

    def mint(self, task: Task) -> Trace:
        """The trace of a rollout that is about to start."""
        model = self.config.context.model
        return Trace(
            task=task.name,
            task_digest=task.digest,
            slot=self.slot,
            agent=self.name,
            harness=self.config.harness.name,
            model=model.name if model else None,
            sandbox_provider=self.config.provider.name,
        )


class Agents:
    """The seats of one episode by name: `agents.agent`, `agents["judge"]`."""

    def __init__(self, seats: dict[str, Agent]) -> None:
        self._seats = seats

    def __getattr__(self, name: str) -> Agent:
        try:
            return self._seats[name]
        except KeyError:
            raise AttributeError(f"this env has no agent {name!r}; it has {', '.join(self._seats)}") from None

    def __getitem__(self, name: str) -> Agent:
        return self._seats[name]
