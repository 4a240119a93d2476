"""Collecting what a task declares, once for a rollout."""

from __future__ import annotations

from forkyard.errors import TaskError, boundary
from forkyard.grade.artifacts import Collected, MissingArtifactError, collect
from forkyard.sandbox import Sandbox
from forkyard.task import ARTIFACTS_DIR, Task
from forkyard.trace import Status, Trace


async def collect_declared(task: Task, trace: Trace, runtime: Sandbox, workdir: str | None) -> Collected:
    """What the task declares, unless a hook of it has collected already. Raises TaskError and SandboxError."""
    if trace.state.artifacts:
        return dict(trace.state.artifacts)
    data = task.data
    failures: dict[str, str] | None = {} if task.collects_what_it_can else None
    try:
        with boundary(TaskError, "task finalize"):
            collected = await collect(
                runtime, data.artifacts, data.artifact_max_bytes, workdir=workdir, failures=failures
            )
        if failures:
            trace.verifier["failed_artifacts"] = failures
        missing = [path for path, archive in collected.items() if archive is None and path not in (failures or ())]
        if task.collects_what_it_can and (missing := [path for path in missing if path != ARTIFACTS_DIR]):
            trace.verifier["missing_artifacts"] = missing
        return collected
    except TaskError as err:
        if isinstance(err.__cause__, MissingArtifactError):  # the agent's doing: no verifier can tell anything
            trace.verifier["code"] = "missing_artifact"
            trace.settle(Status.INDETERMINATE, str(err.__cause__))
        raise
