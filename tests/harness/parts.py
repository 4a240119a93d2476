"""What the tests of harnesses share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkyard.harness import Harness, ModelContext
from forkyard.model import Model, ScriptedModel
from forkyard.sandbox import Sandbox
from forkyard.task import Task, TaskData
from forkyard.trace import AgentLimits, Message, Trace

NO_LIMITS = AgentLimits()
PROMPT = "Write done to /app/answer.txt."


class SolvedTask(Task[TaskData]):
    """A task with a solution directory and variables."""

    def __init__(self, data: TaskData, solution: Path | None = None, **env: str) -> None:
        super().__init__(data)
        self._solution = solution
        self._env = env

    @property
    def solution(self) -> Path | None:
        return self._solution

    def runtime_env(self) -> Mapping[str, str]:
        return {"EVERYWHERE": "yes"}

    def solution_env(self) -> Mapping[str, str]:
        return self._env


def make_task(**data: Any) -> SolvedTask:
    return SolvedTask(TaskData(**{"name": "write", "prompt": PROMPT, **data}))


async def play(
    harness: Harness,
    model: Model | None,
    sandbox: Sandbox,
    task: Task[Any] | None = None,
    limits: AgentLimits = NO_LIMITS,
) -> Trace:
    trace = Trace(task="write")
    await harness.launch(ModelContext(model, limits=limits), task or make_task(), trace, sandbox)
    return trace


async def play_script(harness: Harness, sandbox: Sandbox, *turns: dict[str, Any], **limits: int) -> Trace:
    return await play(harness, ScriptedModel(turns), sandbox, limits=AgentLimits(**limits))


def results(trace: Trace) -> list[str]:
    return [message["content"] for message in trace.messages if message["role"] == "tool"]


def roles(talk: list[Message]) -> list[str]:
    return [message["role"] for message in talk]
