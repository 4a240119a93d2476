"""The Env: how one task becomes one episode. Its `run` is the control flow of the episode, in plain Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from forkyard.env.agent import Agent, Agents, OnPhase, Seat
from forkyard.env.rollout import play
from forkyard.errors import EnvError, RolloutError
from forkyard.task import Task
from forkyard.trace import Slot, Status, Trace
from forkyard.values import new_id


@dataclass(slots=True)
class Episode:
    """One play of an env on a task: the traces of every finished rollout, in the order they ended."""

    id: str
    env: str
    task: str
    traces: list[Trace] = field(default_factory=list)
    error: RolloutError | None = None

    @property
    def ok(self) -> bool:
        """Whether the env's own code and every rollout went through."""
        return self.error is None and all(trace.ok for trace in self.traces)


class Env(ABC):
    """Subclass it and write `run`; `seats` names the agents it plays with."""

    id: ClassVar[str]
    seats: ClassVar[tuple[str, ...]] = ("agent",)

    @abstractmethod
    async def run(self, task: Task, agents: Agents) -> None:
        """Play one episode: `await agents.agent.run(task)`, as often and in whatever order the env wants."""

    async def finalize(self, task: Task, episode: Episode) -> None:  # noqa: B027 - a hook
        """Judge the episode as a whole, after `run`."""

    async def run_episode(
        self, task: Task, slot: Slot, configs: Mapping[str, Seat], on_phase: OnPhase = lambda *_: None
    ) -> Episode:
        """Play one episode. Errors of the env's own code are on the episode; only cancellation is raised.

        There is always at least one trace: when the env fails before any rollout ends, one that says so.
        """
        episode = Episode(new_id(), self.id, task.name)
        slot = replace(slot, episode=episode.id, env=self.id)
        seats = {name: Agent(name, config, slot, on_phase, episode.traces, play) for name, config in configs.items()}
        await self._guarded(episode, "run", self.run(task, Agents(seats)))
        if episode.error is None:
            await self._guarded(episode, "finalize", self.finalize(task, episode))
        if not episode.traces:
            trace = seats[self.seats[0]].mint(task)
            error = episode.error or EnvError(f"{type(self).__name__}.run() started no agent")
            trace.record_error(error)
            trace.settle(Status.INFRASTRUCTURE_ERROR, str(error))
            episode.traces.append(trace)
        return episode

    async def _guarded(self, episode: Episode, stage: str, work: Awaitable[None]) -> None:
        try:
            await work
        except RolloutError as err:
            episode.error = err
        except Exception as err:  # noqa: BLE001 - foreign code: whatever it raises is the env's failure
            episode.error = EnvError(f"{type(self).__name__}.{stage}(): {type(err).__name__}: {err}")


class SingleAgentEnv(Env):
    """One agent, one rollout."""

    id = "single-agent"

    async def run(self, task: Task, agents: Agents) -> None:
        """Let the agent play the task."""
        await agents.agent.run(task)
