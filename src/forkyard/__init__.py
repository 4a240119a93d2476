"""Forkyard: fork an environment once per rollout, let an agent act, grade it where it cannot reach, keep every trace.

What a task, an env, a harness or a provider of your own is written with. Nothing inside the package imports this.
"""

from forkyard.env import (
    Agent,
    AgentConfig,
    Agents,
    Env,
    EnvConfig,
    Episode,
    RetryConfig,
    RetryRule,
    Seat,
    SingleAgentEnv,
)
from forkyard.errors import (
    ConfigError,
    EnvError,
    ForkyardError,
    HarnessError,
    InterceptionError,
    ModelError,
    RolloutError,
    SandboxError,
    TaskError,
    ToolsetError,
)
from forkyard.harness import Harness, ModelContext
from forkyard.model import Endpoint, Model, Reply, Sampling
from forkyard.sandbox import Feature, Limits, ProgramResult, Provider, Sandbox, SandboxInfo, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.task import Artifact, Task, TaskData, TaskResources, Taskset, TaskTimeout, load_task, metric, reward
from forkyard.trace import AgentLimits, Message, Messages, Reward, Slot, Status, Trace, Usage

Runtime = Sandbox

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentLimits",
    "Agents",
    "Artifact",
    "ConfigError",
    "Env",
    "Endpoint",
    "EnvConfig",
    "EnvError",
    "Episode",
    "Feature",
    "ForkyardError",
    "Harness",
    "HarnessError",
    "InterceptionError",
    "Limits",
    "LocalProvider",
    "Message",
    "Messages",
    "Model",
    "ModelContext",
    "ProgramResult",
    "Provider",
    "ModelError",
    "Reply",
    "RetryConfig",
    "RetryRule",
    "Reward",
    "RolloutError",
    "Runtime",
    "Sampling",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxSpec",
    "SingleAgentEnv",
    "Seat",
    "Slot",
    "Status",
    "Task",
    "TaskData",
    "TaskError",
    "TaskResources",
    "TaskTimeout",
    "Taskset",
    "ToolsetError",
    "Trace",
    "Usage",
    "load_task",
    "metric",
    "reward",
]
