"""The env `best-of-n`: several rollouts of one agent on the same task, and which of them was the best."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from pydantic import Field

from forkyard.env.agent import Agents
from forkyard.env.config import AgentConfig, EnvConfig
from forkyard.env.env import Env
from forkyard.env.episode import Episode
from forkyard.task import Task
from forkyard.trace import Status


class BestOfNConfig(EnvConfig):
    """`n` rollouts; a reward of at least `threshold` is a success."""

    agent: AgentConfig = AgentConfig()
    n: int = Field(4, ge=1)
    threshold: float = 1.0


class BestOfNEnv(Env[BestOfNConfig]):
    """Independent rollouts, as many at once as `max_concurrent_agents` allows.

    Each rollout with a reward gets the metric `best`: 1.0 for the first one with the highest reward, 0.0 for the
    others; those that share it are marked by the metric `tied`. Every rollout gets `pass_at_n`: whether any crossed
    the threshold. A rollout without a reward is never the best, and when none has one nothing is known of either.
    """

    id: ClassVar[str] = "best-of-n"

    async def run(self, task: Task, agents: Agents) -> None:
        """Let the agent play them."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.n):
                group.create_task(agents.agent.run(task))

    async def finalize(self, task: Task, episode: Episode) -> None:
        """Mark the best."""
        rewards = [trace.reward if trace.status is Status.SCORED else None for trace in episode.traces]
        known = [reward for reward in rewards if reward is not None]
        top = max(known, default=None)
        for place, (trace, reward) in enumerate(zip(episode.traces, rewards, strict=True)):
            trace.metrics["best"] = None if reward is None else float(place == rewards.index(top))
            trace.metrics["pass_at_n"] = None if top is None else float(top >= self.config.threshold)
            if reward is not None and reward == top and known.count(top) > 1:
                trace.metrics["tied"] = 1.0
