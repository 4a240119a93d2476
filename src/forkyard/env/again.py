"""A rollout that is graded again: its agent's part is on the trace already, and what it left was kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from forkyard.env.agent import Agents
from forkyard.env.boxes import verified_task, verifier_sandbox
from forkyard.env.env import Env, SingleAgentEnvConfig
from forkyard.env.episode import Episode
from forkyard.env.rollout import Rollout
from forkyard.env.seat import OnPhase, Seat
from forkyard.errors import SandboxError, boundary
from forkyard.grade import Grading
from forkyard.grade.again import graded_again, read_collected
from forkyard.sandbox import Sandbox
from forkyard.task import Task, VerifierMode
from forkyard.trace import Slot, Trace
from forkyard.values import new_id


@dataclass(frozen=True, slots=True)
class Left:
    """The agent's part of a rollout on a trace of its own, how to grade it, and what the agent left.

    That is a directory with what was collected for a separate verifier, or what opens a sandbox on the agent's disk.
    """

    trace: Trace
    mode: VerifierMode
    what: Path | Callable[[], Awaitable[Sandbox]]


class GradingAgain(Env[SingleAgentEnvConfig]):
    """Plays no agent: each episode is a rollout of before, graded anew. `env` is the id its traces go under."""

    id: ClassVar[str] = "grading-again"

    def __init__(self, env: str, left: Callable[[Task, Slot], Left]) -> None:
        super().__init__()
        self._env = env
        self._left = left

    async def run(self, task: Task, agents: Agents) -> None:
        """Never called."""
        raise NotImplementedError

    async def run_episode(
        self, task: Task, slot: Slot, seats: Mapping[str, Seat], on_phase: OnPhase = lambda *_: None
    ) -> Episode:
        """Grade one rollout; what goes wrong is on its trace."""
        episode = Episode(new_id(), self._env, task.name)
        left = self._left(task, Slot(slot.run, slot.sample, slot.attempt, episode.id, self._env))
        episode.traces.append(left.trace)
        await _GradedAgain(seats["agent"], task, left, on_phase).play()
        return episode


class _GradedAgain(Rollout):
    """The grading phase alone."""

    def __init__(self, seat: Seat, task: Task, left: Left, on_phase: OnPhase) -> None:
        super().__init__(replace(seat, verifier=left.mode), task, left.trace, on_phase, None, False)
        self._what = left.what

    async def play(self) -> None:
        """Grade, and let go of everything."""
        self._on_phase(self.trace, "grade")
        try:
            with self._on_record():
                await self._grade_again()
        finally:
            await self.close()

    async def _grade_again(self) -> None:
        if not isinstance(self._what, Path):
            self._sandbox = await self._what()  # nothing of the agent's runs yet: a failure so far is the machine's
            self._touched = True
            await self._grade()
            return
        with boundary(SandboxError, "what was collected"):
            collected = await asyncio.to_thread(read_collected, self._what)
        seat, task = self.seat, verified_task(self.seat, self.task)
        grading = Grading(
            task=task,
            mode="separate",
            fresh=lambda: verifier_sandbox(seat, task),
            end=self._leave_sandbox,
            retries=seat.verification.retries,
            keep_in=None if seat.keep_logs_in is None else seat.keep_logs_in / self.trace.id,
        )
        await graded_again(grading, self.trace, collected)
