"""Envs: how one task becomes one episode of one or more rollouts."""

from forkyard.env.agent import Agent, AgentConfig, Agents, ImageFor, OnPhase
from forkyard.env.env import Env, Episode, SingleAgentEnv
from forkyard.env.rollout import RESOURCES, limits_of, sandbox_spec

__all__ = [
    "Agent",
    "AgentConfig",
    "Agents",
    "Env",
    "Episode",
    "ImageFor",
    "OnPhase",
    "RESOURCES",
    "SingleAgentEnv",
    "limits_of",
    "sandbox_spec",
]
