"""One rollout: fork, set up, act, grade. The order of its phases is the contract of the env API.

fork      a sandbox from the task's image, built when it is missing
setup     Task.setup, then Harness.setup
agent     Harness.launch, until it is done or its deadline passes
finalize  Task.finalize
grade     hidden files enter, Task.score (see `forkyard.grade`), the logs are kept
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict

from forkyard.env.agent import OnPhase, Seat
from forkyard.errors import ForkyardError, HarnessError, ModelError, SandboxError, TaskError, boundary
from forkyard.grade import check_mode, graded, keep_logs, settle_failure
from forkyard.sandbox import NO_NETWORK, Feature, Limits, Sandbox, SandboxSpec
from forkyard.sandbox.promises import kept
from forkyard.task import Task, TaskTimeout, invoke
from forkyard.trace import Status, Timing, Trace

RESOURCES = {"cpus": "cpu", "memory_mb": "memory", "disk_mb": "disk"}
"""The bounds a task can ask for, and the fields of `TaskResources` it does so by."""


async def play(config: Seat, task: Task, trace: Trace, on_phase: OnPhase) -> None:
    """Play one rollout into `trace`. Everything that goes wrong is on the trace; only cancellation is raised."""
    task = _with_deadlines(task, config.timeout)
    sandbox: Sandbox | None = None
    acted = False
    try:
        mode = check_mode(config.verifier or task.data.verifier)
        on_phase(trace, "fork")
        image = await config.image_for(task)
        with _timed(trace.timing, "fork_ms"):
            sandbox = await config.provider.create(sandbox_spec(task, image, config.provider.features))
        on_phase(trace, "setup")
        with _timed(trace.timing, "setup_ms"):
            await _set_up(config, task, trace, sandbox)
        if trace.status is None:
            on_phase(trace, "agent")
            if task.setup_network is not None:
                await sandbox.set_network(task.network or NO_NETWORK)
            acted = True
            with _timed(trace.timing, "agent_ms"):
                await _launch(config, task, trace, sandbox)
            await _finalize(task, trace, sandbox)
            on_phase(trace, "grade")
            async with graded(task, trace, sandbox, mode) as verifier:
                if config.keep_logs_in is not None:
                    await keep_logs(trace, verifier, config.keep_logs_in / trace.id)
    except ForkyardError as err:
        settle_failure(trace, err, acted)
    except Exception as err:  # noqa: BLE001 - a fault of ours in one rollout must not end the others
        trace.record_error(err)
        status = Status.INDETERMINATE if acted else Status.INFRASTRUCTURE_ERROR  # whatever an agent can provoke
        trace.settle(status, f"internal error: {type(err).__name__}: {err}")
    finally:
        if sandbox is not None:
            if visits := sandbox.visits:
                trace.info["network"] = [asdict(visit) for visit in visits]
            await _closed(sandbox, trace)
        on_phase(trace, "done")


async def _set_up(config: Seat, task: Task, trace: Trace, sandbox: Sandbox) -> None:
    try:
        async with asyncio.timeout(task.data.timeout.setup):
            with boundary(TaskError, f"task {type(task).__name__} setup"):
                await invoke(task.setup, task=task.data, trace=trace, runtime=sandbox)
            with boundary(HarnessError, f"harness {config.harness.name} setup"):
                await config.harness.setup(task, sandbox)
    except TimeoutError:
        trace.record_timeout("setup")
        trace.settle(Status.INFRASTRUCTURE_ERROR, f"setup took longer than {task.data.timeout.setup:g} s")


async def _launch(config: Seat, task: Task, trace: Trace, sandbox: Sandbox) -> None:
    try:
        async with asyncio.timeout(task.data.timeout.agent):
            with boundary(HarnessError, f"harness {config.harness.name}"):
                await config.harness.launch(config.context, task, trace, sandbox)
    except TimeoutError as err:
        if unheard := _unheard(config, trace):
            raise ModelError(f"{unheard}, until the agent's time was up", 504) from err
        trace.record_timeout("agent")
    trace.stop("agent_completed")


def _unheard(config: Seat, trace: Trace) -> str | None:
    """Why an agent that ran out of time was never given any: its model failed, or never said a word."""
    if trace.model_failing:
        return f"the model's provider kept failing ({trace.model_failing})"
    if config.context.model is not None and not trace.steps:
        return "the model did not answer once"
    return None


async def _finalize(task: Task, trace: Trace, sandbox: Sandbox) -> None:
    """Like the agent's, this deadline is a stop and no failure: grading goes on."""
    try:
        async with asyncio.timeout(task.data.timeout.finalize):
            with boundary(TaskError, f"task {type(task).__name__} finalize"):
                await invoke(task.finalize, task=task.data, trace=trace, runtime=sandbox)
    except TimeoutError:
        trace.is_timeout = True
        trace.info["finalize_timeout"] = task.data.timeout.finalize


async def _closed(sandbox: Sandbox, trace: Trace) -> None:
    """Close a sandbox; a failure is tried once more, then put on the record: it changes no score."""
    try:
        await sandbox.close()
    except SandboxError as first:
        trace.info["close"] = str(first)
        with suppress(SandboxError):
            await sandbox.close()


def sandbox_spec(task: Task, image: str, features: Set[Feature]) -> SandboxSpec:
    """What a task asks of its sandbox; bounds that a provider with these features does not keep are left out."""
    return SandboxSpec(
        image=image,
        env=dict(task.runtime_env()),
        workdir=task.data.workdir,
        network=task.setup_network or task.network or NO_NETWORK,
        limits=kept(limits_of(task), features),
    )


def limits_of(task: Task) -> Limits:
    """The bounds a task asks for. Raises ConfigError for numbers too small to be any."""
    asked = task.data.resources
    given = {bound: getattr(asked, field) for bound, field in RESOURCES.items()}
    return Limits(**{bound: _megabytes(value) if bound.endswith("_mb") else value for bound, value in given.items()})


def _megabytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else max(1, round(gigabytes * 1024))


def _with_deadlines(task: Task, timeout: TaskTimeout) -> Task:
    given = timeout.model_dump(exclude_none=True)
    return task.with_data(timeout=task.data.timeout.model_copy(update=given)) if given else task


@contextmanager
def _timed(timing: Timing, field: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(timing, field, (time.perf_counter() - started) * 1000)
