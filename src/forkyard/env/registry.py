"""Envs by name: ours, those that installed packages offer, or any class given as "module:Class"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forkyard.env.agentic_judge import AgenticJudgeEnv, SharedAgenticJudgeEnv
from forkyard.env.best_of_n import BestOfNEnv
from forkyard.env.env import Env
from forkyard.env.isolated_verifier import IsolatedVerifierEnv
from forkyard.env.single import SingleAgentEnv
from forkyard.env.user_sim import UserSimEnv
from forkyard.plugins import Kind, load_class

ENVS: Mapping[str, type[Env[Any]]] = {
    env.id: env
    for env in (
        SingleAgentEnv,
        BestOfNEnv,
        IsolatedVerifierEnv,
        AgenticJudgeEnv,
        SharedAgenticJudgeEnv,
        UserSimEnv,
    )
}
_KIND = Kind("env", "forkyard.envs", ENVS)


def env_class(name: str) -> type[Env[Any]]:
    """The env of that name or at "module:Class", not made yet. Raises ConfigError."""
    return load_class(_KIND, name, Env, "forkyard.Env")
