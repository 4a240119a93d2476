"""Evidence of the services beside the agent's sandbox, in tasks of several containers."""

from __future__ import annotations

from forkyard.errors import ConfigError, EngineLost, SandboxError, TaskError, boundary
from forkyard.grade.artifacts import Collected, absolute, collect
from forkyard.sandbox import HasServices, Sandbox
from forkyard.task import Task, invoke
from forkyard.trace import Trace
from forkyard.values import printable


async def collect_from_services(task: Task, trace: Trace, sandbox: Sandbox, *, stop: bool) -> Collected:
    """Have the task's services make their evidence ready, then collect it; with `stop` the agent's ends before.

    What fails is on the record, a service that has died too. Raises EngineLost, and TaskError for what a hook raises.
    """
    if not task.services:
        return {}
    if stop:
        await sandbox.stop()
    boxes = {name: box for name in task.services if (box := await _service(trace, sandbox, name)) is not None}
    for name, box in boxes.items():
        try:
            with boundary(TaskError, f"task {type(task).__name__} finalize_service"):
                await invoke(task.finalize_service, task=task.data, trace=trace, runtime=box, service=name)
        except EngineLost:
            raise
        except SandboxError as err:
            _failed(trace, name, err)
    collected: Collected = {}
    failures: dict[str, str] = {}
    for name in task.services:
        found = await _collected(task, name, boxes.get(name), failures)
        collected |= {path: archive for path, archive in found.items() if path not in collected}
    if failures:
        trace.verifier["failed_artifacts"] = {**trace.verifier.get("failed_artifacts", {}), **failures}
    return collected


async def _service(trace: Trace, sandbox: Sandbox, name: str) -> Sandbox | None:
    try:
        if not isinstance(sandbox, HasServices):
            raise SandboxError("the agent's sandbox has no services beside it")
        return await sandbox.service(name)
    except EngineLost:
        raise
    except (SandboxError, ConfigError) as err:
        _failed(trace, name, err)
        return None


async def _collected(task: Task, name: str, box: Sandbox | None, failures: dict[str, str]) -> Collected:
    """What is declared of a service; of one that is gone nothing, and why is put into `failures`."""
    declared = task.services[name]
    paths = [absolute(artifact, "/") for artifact in declared]
    why = "its service does not run"
    if box is not None:
        try:
            return await collect(box, declared, task.data.artifact_max_bytes, False, workdir="/", failures=failures)
        except EngineLost:
            raise
        except SandboxError as err:
            why = str(err)[:500]
    failures.update(dict.fromkeys(paths, why))
    return dict.fromkeys(paths)


def _failed(trace: Trace, service: str, error: Exception) -> None:
    failed = {"service": service, "error": printable(str(error)[:500])}
    trace.verifier["failed_hooks"] = [*trace.verifier.get("failed_hooks", []), failed]
