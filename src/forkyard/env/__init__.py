"""Envs: how one task becomes one episode of one or more rollouts."""

from forkyard.env.agent import Agent, Agents, ImageFor, OnPhase, Seat
from forkyard.env.config import AgentConfig, EnvConfig, RetryConfig, RetryRule
from forkyard.env.env import Env, Episode, SingleAgentEnv
from forkyard.env.rollout import RESOURCES, limits_of, sandbox_spec

__all__ = [
    "Agent",
    "AgentConfig",
    "Agents",
    "Env",
    "EnvConfig",
    "Episode",
    "ImageFor",
    "OnPhase",
    "RESOURCES",
    "RetryConfig",
    "RetryRule",
    "Seat",
    "SingleAgentEnv",
    "limits_of",
    "sandbox_spec",
]
