"""Envs: how one task becomes one episode of one or more rollouts."""

from forkyard.env.agent import Agent, Agents, agent_at
from forkyard.env.agentic_judge import AgenticJudgeConfig, AgenticJudgeEnv, SharedAgenticJudgeEnv
from forkyard.env.best_of_n import BestOfNConfig, BestOfNEnv
from forkyard.env.bounds import RESOURCES, limits_of
from forkyard.env.boxes import sandbox_spec
from forkyard.env.config import AgentConfig, EnvConfig, RetryConfig, RetryRule
from forkyard.env.env import Env, SingleAgentEnvConfig
from forkyard.env.episode import Episode
from forkyard.env.interaction import Interaction, Segment
from forkyard.env.isolated_verifier import IsolatedVerifierConfig, IsolatedVerifierEnv
from forkyard.env.registry import ENVS, env_class
from forkyard.env.seat import ImageFor, OnPhase, Seat, Verification
from forkyard.env.single import SingleAgentEnv
from forkyard.env.user_sim import UserSimConfig, UserSimEnv

__all__ = [
    "ENVS",
    "Agent",
    "AgentConfig",
    "AgenticJudgeConfig",
    "AgenticJudgeEnv",
    "Agents",
    "BestOfNConfig",
    "BestOfNEnv",
    "Env",
    "EnvConfig",
    "Episode",
    "ImageFor",
    "Interaction",
    "IsolatedVerifierConfig",
    "IsolatedVerifierEnv",
    "OnPhase",
    "RESOURCES",
    "RetryConfig",
    "RetryRule",
    "Seat",
    "Segment",
    "SharedAgenticJudgeEnv",
    "SingleAgentEnv",
    "SingleAgentEnvConfig",
    "UserSimConfig",
    "UserSimEnv",
    "Verification",
    "agent_at",
    "env_class",
    "limits_of",
    "sandbox_spec",
]
