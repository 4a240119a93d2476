"""The grading phase: the agent is done; from here on nothing it left running or lying about may choose the score.

    shared     the verifier works in the agent's sandbox, beside what the agent left running
    forked     the agent's sandbox is stopped, which ends all of its processes, and the verifier works in a fork

Hidden files enter a sandbox here, through `Task.stage_verifier`, and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forkyard.errors import ConfigError, RolloutError, TaskError, boundary
from forkyard.grade.blame import settle_failure
from forkyard.sandbox import Sandbox
from forkyard.task import Task, VerifierMode, invoke
from forkyard.trace import Status, Trace


@asynccontextmanager
async def graded(task: Task, trace: Trace, sandbox: Sandbox, mode: VerifierMode) -> AsyncIterator[Sandbox]:
    """Grade what the agent left in `sandbox`, then lend out the sandbox that graded, for its logs.

    Settles the trace's status whatever happens, short of cancellation. `sandbox` is borrowed: in mode "forked" it is
    left stopped.
    """
    trace.verifier["mode"] = mode
    started = time.perf_counter()
    verifier = sandbox
    try:
        try:
            verifier = await _place(sandbox, mode)
            if task.verifier_network is not None:
                await verifier.set_network(task.verifier_network)
            await _verify(task, trace, verifier)
        except RolloutError as err:
            settle_failure(trace, err, acted=True)
        trace.settle(Status.INDETERMINATE, "the verifier said nothing")
        trace.timing.grade_ms = (time.perf_counter() - started) * 1000
        yield verifier
    finally:
        if verifier is not sandbox:
            await verifier.close()


def check_mode(mode: VerifierMode) -> VerifierMode:
    """The mode, if there is such a thing; said before the agent acts. Raises ConfigError."""
    if mode == "separate":
        raise ConfigError("grading mode 'separate' is not available yet: use 'shared' or 'forked'")
    return mode


async def _place(sandbox: Sandbox, mode: VerifierMode) -> Sandbox:
    if mode == "shared":
        return sandbox
    await sandbox.stop()
    return await sandbox.fork()


async def _verify(task: Task, trace: Trace, verifier: Sandbox) -> None:
    with boundary(TaskError, f"task {type(task).__name__} stage_verifier"):
        await invoke(task.stage_verifier, task=task.data, trace=trace, runtime=verifier)
    await task.score(trace, verifier)
