"""How one rollout is to be graded, and the one door for hidden files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import SandboxError, TaskError, boundary
from forkyard.grade.answered import check_answered
from forkyard.sandbox import Sandbox
from forkyard.task import Task, VerifierMode, invoke
from forkyard.task.judges import Ask, judging_by
from forkyard.task.judges.desk import Serve, serving_by
from forkyard.trace import Trace


@dataclass(frozen=True, slots=True)
class Grading:
    """How one rollout is graded.

    `task` is the task as the verifier's sandbox sees it. `end` ends the agent's sandbox unless it is `lent`; `fresh`
    opens one for a separate verifier, whose failures are tried again `retries` times. `workdir` is where relative
    artifacts lie, `keep_in` the rollout's directory on the host. `ask` is how the task's judges reach a model,
    `serve` how a verifier in the sandbox does.
    """

    task: Task
    mode: VerifierMode
    fresh: Callable[[], Awaitable[Sandbox]]
    end: Callable[[], Awaitable[None]]
    lent: bool = False
    workdir: str | None = None
    retries: int = 2
    keep_in: Path | None = None
    ask: Ask | None = None
    serve: Serve | None = None


async def stage(task: Task, trace: Trace, verifier: Sandbox, what: str) -> None:
    """Let the hidden files in. Raises TaskError, saying `what` was done, for what the hook raises, and when it takes
    longer than scoring may.
    """
    seconds = task.data.timeout.scoring_seconds
    try:
        async with asyncio.timeout(seconds):
            with boundary(TaskError, what):
                await invoke(task.stage_verifier, task=task.data, trace=trace, runtime=verifier)
    except TimeoutError:
        raise TaskError(f"{what} took longer than {seconds:g} s") from None


async def score(grading: Grading, trace: Trace, verifier: Sandbox) -> None:
    """Have the task score what is in the verifier's sandbox. Raises as `Task.score` and `check_answered` do."""
    before = len(trace.calls)
    with judging_by(grading.ask), serving_by(grading.serve):
        await grading.task.score(trace, verifier)
    if len(trace.calls) > before:
        check_answered(trace, trace.calls[before:])


async def closed(sandbox: Sandbox) -> str | None:
    """Close a sandbox; a failure is tried once more and told: it changes no score."""
    try:
        await sandbox.close()
    except SandboxError as first:
        with suppress(SandboxError):
            await sandbox.close()
        return str(first)
    return None
