"""What a harness is: the program around the model, driving one sandbox and narrating into one trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from forkyard.model import Endpoint, Model, Sampling
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import AgentLimits, Trace


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a harness is given to think with.

    `model` is None for harnesses that ask none; `endpoint` is where a program inside the sandbox reaches the same
    model, there when `Harness.needs_endpoint` says so.
    """

    model: Model | None = None
    sampling: Sampling = Sampling()
    limits: AgentLimits = AgentLimits()
    endpoint: Endpoint | None = None


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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def problems(self, task: Task) -> list[str]:
        """Why it cannot play a task, one sentence each; asked of every task before a run starts."""
        return []

    async def setup(self, task: Task, runtime: Sandbox) -> None:  # noqa: B027 - a hook
        """Prepare the sandbox, after the task's own setup."""

    @abstractmethod
    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
