"""The env `single-agent`: one agent, one rollout."""

from __future__ import annotations

from typing import ClassVar

from forkyard.env.agent import Agents
from forkyard.env.env import Env, SingleAgentEnvConfig
from forkyard.task import Task
from forkyard.trace import SINGLE_AGENT


class SingleAgentEnv(Env[SingleAgentEnvConfig]):
    """One agent, one rollout."""

    id: ClassVar[str] = SINGLE_AGENT

    async def run(self, task: Task, agents: Agents) -> None:
        """Let the agent play the task."""
        await agents.agent.run(task)
