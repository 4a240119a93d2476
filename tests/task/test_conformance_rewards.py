"""What a verifier leaves, by the conformance ids R1 to R7 of the task format; R8 and R9 are with the stages."""

from __future__ import annotations

import pytest

from forkyard.sandbox import Sandbox
from forkyard.task import invoke, load_task
from forkyard.trace import Status, Trace
from tests.task.conftest import MakeTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOTH = "echo 0 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
ROWS = {
    "r1 of both files the json counts": (":", BOTH, "SCORED", 1.0),
    "r4 stale files are gone before the script": (BOTH, ":", "INDETERMINATE", None),
    "r5 an exit code decides nothing": (":", "echo 1 > /logs/verifier/reward.txt; exit 1", "SCORED", 1.0),
    "r6 nor does a good one without a file": (":", "exit 0", "INDETERMINATE", None),
    "r7 the script starts in an empty folder": (
        "echo x > /logs/verifier/test-stdout.txt",
        '[ -z "$(ls -A /logs/verifier)" ] && echo 1 > /logs/verifier/reward.txt; echo out',
        "SCORED",
        1.0,
    ),
}


@pytest.mark.parametrize(("agent", "test", "status", "reward"), ROWS.values(), ids=ROWS.keys())
async def test_r1_r4_to_r7_what_a_verifier_leaves(
    agent: str, test: str, status: str, reward: float | None, make_task: MakeTask, sandbox: Sandbox
) -> None:
    task, trace = load_task(make_task({"tests/test.sh": f"#!/bin/bash\n{test}\n"}), {}), Trace()
    given = {"task": task.data, "trace": trace, "runtime": sandbox}
    await invoke(task.setup, **given)
    await sandbox.run(agent)
    await invoke(task.stage_verifier, **given)
    await task.score(trace, sandbox)
    assert (trace.status, trace.reward) == (Status(status), reward), trace.reason
