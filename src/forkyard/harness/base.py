"""What a harness is: the program around the model, driving one sandbox and narrating into one trace."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from forkyard.harness.equipment import Equipment
from forkyard.harness.offering import CallsTools, tool_problems
from forkyard.harness.toolbox import Toolbox
from forkyard.model import Endpoint, Model, Sampling
from forkyard.sandbox import Sandbox
from forkyard.task import Task, ToolServer
from forkyard.trace import AgentLimits, Trace

_NOT_GIVEN = frozenset({"endpoint", "secret", "mcp_urls", "data", "tool_interception_url"})  # as `verifiers.v1` gives


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a harness is given to think with.

    `model` is None for harnesses that ask none; `endpoint` is where a program inside the sandbox reaches the same
    model, there when `Harness.needs_endpoint` says so. The task's tools are in `toolbox` for harnesses in this process,
    and for programs inside the sandbox `tools` are the servers of them, by name, see `Harness.calls_tools`.
    """

    model: Model | None = None
    sampling: Sampling = Sampling()
    limits: AgentLimits = AgentLimits()
    endpoint: Endpoint | None = None
    toolbox: Toolbox | None = None
    tools: Mapping[str, ToolServer] = field(default_factory=dict)


class Harness(ABC):
    """One seat's program. An instance may serve many rollouts at once and keeps nothing about any of them.

    `launch` returns when the agent is done and has said why by `trace.stop(...)`; deadlines are the caller's, by
    cancellation, so a harness never catches `asyncio.CancelledError`. Messages go into `trace.messages` as they
    happen. What goes wrong is raised: sandbox and provider errors pass through, anything else becomes HarnessError.
    """

    name: ClassVar[str]
    """As it goes on the record; by default the name of the class in lower case."""
    needs_model: ClassVar[bool] = True
    needs_endpoint: ClassVar[bool] = False
    """Whether its program runs inside the sandbox and reaches the model by HTTP, see `ModelContext.endpoint`."""
    dialect: ClassVar[str] = "chat"
    """How its program asks the model: "chat", "responses" or "messages"."""
    converses: ClassVar[bool] = True
    """Whether `launch` goes on with a conversation whose last message is a user's, and returns once it has replied."""
    executes_code: ClassVar[bool] = True
    """Whether its agent can run commands in the sandbox."""
    calls_tools: ClassVar[CallsTools | None] = None
    """How its agent calls the task's tools: by `ModelContext.toolbox`, as an MCP client in the sandbox, or not."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        launch = vars(cls).get("launch")
        if launch is not None and (foreign := _NOT_GIVEN.intersection(inspect.signature(launch).parameters)):
            raise TypeError(
                f"{cls.__name__}.launch asks for {', '.join(sorted(foreign))}; write launch(self, ctx, task, trace, "
                "runtime): the address and the key are ctx.endpoint.base_url and ctx.endpoint.key (with needs_endpoint "
                "= True), tool servers are ctx.tools, and data is task.data"
            )

    def problems(self, task: Task) -> list[str]:
        """Why it cannot play a task, one sentence each; asked of every task before a run starts."""
        return tool_problems(task, self.name, self.calls_tools) if self.calls_tools or self.needs_model else []

    def equipment(self) -> Equipment | None:
        """What it needs in the image of its sandboxes: installed once for each image, not for each rollout."""
        return None

    async def setup(self, task: Task, runtime: Sandbox) -> None:  # noqa: B027 - a hook
        """Prepare the sandbox, after the task's own setup."""

    async def score(self, trace: Trace, runtime: Sandbox) -> None:  # noqa: B027 - a hook
        """Record metrics of its own, after `Task.finalize`, in the sandbox the agent worked in."""

    @abstractmethod
    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
