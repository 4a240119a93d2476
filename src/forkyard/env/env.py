"""The Env: how one task becomes one episode. Its `run` is the control flow of the episode, in plain Python."""

from __future__ import annotations

import asyncio
import typing
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar, Generic, cast

from typing_extensions import TypeVar

from forkyard.env.agent import Agent, Agents, Table
from forkyard.env.checks import seat_problems
from forkyard.env.config import AgentConfig, EnvConfig, RuntimeChoice
from forkyard.env.contained import contained
from forkyard.env.episode import Episode, acted_in
from forkyard.env.seat import OnPhase, Place, Seat
from forkyard.errors import EnvError, RolloutError
from forkyard.grade import unknown
from forkyard.task import Task
from forkyard.trace import Slot, Status
from forkyard.values import new_id


class SingleAgentEnvConfig(EnvConfig):
    """One agent."""

    agent: AgentConfig = AgentConfig()


ConfigT = TypeVar("ConfigT", bound=EnvConfig, default=SingleAgentEnvConfig)


class Env(ABC, Generic[ConfigT]):
    """Subclass it and write `run`.

    `class MyEnv(Env[MyConfig])` names its config class, whose fields of type `AgentConfig` are the agents it plays
    with; without one there is one agent, called `agent`. One object plays all episodes of a run, many at once.
    """

    id: ClassVar[str]

    def __init__(self, config: ConfigT | None = None) -> None:
        kind = self.config_type()
        given = kind() if config is None else config
        if not isinstance(given, kind):
            raise TypeError(f"{type(self).__name__} takes a {kind.__name__}, not a {type(given).__name__}")
        if not given.agents:
            raise ValueError(f"{kind.__name__} has no agent: give it a field `agent: AgentConfig = AgentConfig()`")
        self.config: ConfigT = given

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "id" not in vars(cls):
            cls.id = cls.__name__

    @classmethod
    def config_type(cls) -> type[ConfigT]:
        """The class of its configuration, from the generic parameter."""
        for base in cls.__mro__:
            for generic in vars(base).get("__orig_bases__", ()):
                origin, arguments = typing.get_origin(generic), typing.get_args(generic)
                if isinstance(origin, type) and issubclass(origin, Env) and isinstance(arguments[0], type):
                    return cast(type[ConfigT], arguments[0])
        return cast(type[ConfigT], SingleAgentEnvConfig)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return self.config.agents

    @abstractmethod
    async def run(self, task: Task, agents: Agents) -> None:
        """Play one episode: `await agents.agent.run(task)`, as often and in whatever order the env wants."""

    async def setup(self, agents: Agents) -> None:
        """Prepare the agents of one episode, before `run`."""

    async def finalize(self, task: Task, episode: Episode) -> None:
        """Judge the episode as a whole, after `run`."""

    def furnish(self, place_for: Callable[[RuntimeChoice], Place]) -> None:
        """Take the places that it needs beside its agents' own; who gives them closes them, after `stop`."""

    def seated(self, name: str, seat: Seat) -> Seat:
        """The seat of the agent of that name as the env has its work graded."""
        return seat

    async def start(self) -> None:
        """Open what all episodes share."""

    async def stop(self) -> None:
        """Close what `start` opened."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Around all episodes of a run: `start`, and `stop` whatever happens."""
        try:
            await self.start()
            yield
        finally:
            await self.stop()

    def complete(self, episode: Episode) -> bool:
        """Whether a run that is resumed keeps the episode and does not play it again; asked when it has ended.

        As it is here, one is kept unless the env's own code or the infrastructure failed. An env that accepts that one
        of its agents failed says so.
        """
        return not episode.failed

    def plays(self, name: str, task: Task) -> Task:
        """The task that the agent of that name is given when the env plays `task`."""
        return task

    def problems(self, task: Task, seats: Mapping[str, Seat]) -> list[str]:
        """Why it cannot play a task with these seats, one sentence each; asked of every task before a run starts."""
        return [problem for name in self.agents for problem in seat_problems(self.plays(name, task), seats[name])]

    async def run_episode(
        self, task: Task, slot: Slot, seats: Mapping[str, Seat], on_phase: OnPhase = lambda *_: None
    ) -> Episode:
        """Play one episode. Errors of the env's own code are on the episode; only cancellation is raised.

        Every rollout that was begun leaves its trace, also when the env's deadline or an error of its own ended it.
        There is always at least one: when the env fails before any rollout began, one that says so.
        """
        episode = Episode(new_id(), self.id, task.name)
        table = Table(task, replace(slot, episode=episode.id, env=self.id), on_phase, episode.traces)
        if self.config.max_concurrent_agents is not None:
            table.room = asyncio.Semaphore(self.config.max_concurrent_agents)
        agents = {name: Agent(name, seats[name], table) for name in self.agents}
        try:
            await self._guarded(episode, "run", self._play(task, Agents(agents)), self.config.timeout.episode)
        finally:
            await table.clear()
        _settle_unfinished(episode, table)
        if not episode.traces:
            self._leave_a_trace(episode, task, agents[self.agents[0]])
        elif not episode.errors:
            await self._guarded(episode, "finalize", self.finalize(task, episode), self.config.timeout.finalize)
        for trace in episode.traces:
            if not trace.trainable:  # a judge's or a user's part, in which there is nothing to grade
                trace.settle(Status.SCORED)
            trace.settle(Status.INDETERMINATE, "nobody graded it")
        self._conclude(episode)
        return episode

    async def _play(self, task: Task, agents: Agents) -> None:
        await self.setup(agents)
        await self.run(task, agents)

    async def _guarded(self, episode: Episode, hook: str, work: Awaitable[None], seconds: float | None) -> None:
        where = f"{type(self).__name__}.{hook}()"
        try:
            with contained():
                async with asyncio.timeout(seconds) as deadline:
                    await work
        except RolloutError as err:
            episode.errors.append(err)
        except (Exception, SystemExit) as err:  # noqa: BLE001 - foreign code: whatever it raises is the env's failure
            if deadline.expired():
                option = "episode" if hook == "run" else hook
                episode.is_timeout = True
                episode.errors.append(EnvError(f"{where} exceeded its {seconds:g}s deadline (--env.timeout.{option})"))
            else:
                episode.errors.append(EnvError(f"{where}: {_told(err)}"))

    def _conclude(self, episode: Episode) -> None:
        """Put on every line what is to be said of the episode as a whole."""
        complete = False
        try:
            complete = bool(self.complete(episode))
        except (Exception, SystemExit) as err:  # noqa: BLE001 - foreign code: whatever it raises is the env's failure
            episode.errors.append(EnvError(f"{type(self).__name__}.complete(): {_told(err)}"))
        for trace in episode.traces:
            if complete is episode.failed:
                trace.info["complete"] = complete
            if episode.errors:
                trace.info["env_error"] = str(episode.errors[-1])

    def _leave_a_trace(self, episode: Episode, task: Task, agent: Agent) -> None:
        if not episode.errors:
            episode.errors.append(EnvError(f"{type(self).__name__}.run() started no agent"))
        trace = agent.mint(task)
        trace.record_error(episode.errors[-1])
        trace.settle(Status.INFRASTRUCTURE_ERROR, str(episode.errors[-1]))
        episode.traces.append(trace)


def _settle_unfinished(episode: Episode, table: Table) -> None:
    """Rollouts that the env began and did not see to their end: no reward is known, and it was not the machine."""
    for trace in table.minted:
        if any(trace is finished for finished in episode.traces):
            continue
        error = episode.last_error or EnvError("the env ended before this rollout did")
        trace.is_timeout = trace.is_timeout or episode.is_timeout
        trace.record_error(error)
        trace.settle(unknown(acted_in(trace)), str(error))
        episode.traces.append(trace)


def _told(error: BaseException) -> str:
    """An error's class and text; of a group of one, that one's."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
