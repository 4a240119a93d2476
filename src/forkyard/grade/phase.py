"""The grading phase: the agent is done; from here on nothing it left running or lying about may choose the score.

    shared     the verifier works in the agent's sandbox, beside what the agent left running (see `apart`)
    forked     the verifier works in a fork of the agent's disk, without any process the agent left
    separate   the agent's sandbox ends, and the verifier works in a fresh one with the declared artifacts

Hidden files enter a sandbox here, through `Task.stage_verifier`, and nowhere else.
"""

from __future__ import annotations

import time

from forkyard.errors import RolloutError
from forkyard.grade.apart import apart_from_agent
from forkyard.grade.blame import settle_failure
from forkyard.grade.evidence import keep_evidence, note_artifacts
from forkyard.grade.grading import Grading, closed, score, stage
from forkyard.grade.logs import keep_logs, keep_parts
from forkyard.grade.separate import verify_separately
from forkyard.sandbox import Sandbox
from forkyard.trace import Status, Trace


async def graded(grading: Grading, trace: Trace, sandbox: Sandbox) -> None:
    """Grade what the agent left in `sandbox`. Settles the trace's status whatever happens, short of cancellation.

    `sandbox` is left stopped by mode "forked" unless it is lent, and has ended after mode "separate". A task that is
    graded by its record alone needs no fork: nobody looks into a sandbox.
    """
    trace.verifier["mode"] = grading.mode
    started = time.perf_counter()
    try:
        verify = verify_separately if grading.mode == "separate" else _verify_on_its_disk
        await verify(grading, trace, sandbox)
        trace.settle(Status.INDETERMINATE, "the verifier said nothing")
    finally:
        trace.timing.grade_ms = (time.perf_counter() - started) * 1000


async def _verify_on_its_disk(grading: Grading, trace: Trace, sandbox: Sandbox) -> None:
    task, verifier, early = grading.task, sandbox, False
    try:
        try:
            early = await keep_evidence(grading, trace, sandbox)
            if grading.mode == "forked" and not task.graded_by_record:
                if not grading.lent:
                    await sandbox.stop()
                verifier = await sandbox.fork()
            if task.networks.verifier is not None:
                await verifier.set_network(task.networks.verifier)
            if grading.mode == "shared":
                verifier = await apart_from_agent(task, trace, sandbox)
            await stage(task, trace, verifier, f"task {type(task).__name__} stage_verifier")
            await score(grading, trace, verifier)
        except RolloutError as err:
            settle_failure(trace, err, acted=True)
        if grading.keep_in is not None and early:
            await keep_parts(trace, verifier, grading.keep_in, ("agent", "verifier"))
        elif grading.keep_in is not None:
            await keep_logs(trace, verifier, grading.keep_in)
            note_artifacts(grading)
    finally:
        if verifier is not sandbox and (trouble := await closed(verifier)):
            trace.info["close"] = trouble
