"""Mode shared: what an agent left running, beside the verifier, at the reward."""

from __future__ import annotations

import pytest

from forkyard.sandbox import Sandbox
from forkyard.task import DirectoryTask, invoke, load_task
from forkyard.trace import Status, Trace
from tests.task.conftest import MakeTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

HONEST = "#!/bin/bash\nif grep -qx done /app/answer.txt 2>/dev/null; then r=1; else r=0; fi\nsleep 0.1\n"
HONEST += "echo $r > /logs/verifier/reward.txt\n"


async def graded_beside(task: DirectoryTask, sandbox: Sandbox, agent: str, user: str | None = None) -> Trace:
    """As `graded`, in mode shared."""
    trace = Trace()
    given = {"task": task.data, "trace": trace, "runtime": sandbox}
    await invoke(task.setup, **given)
    await sandbox.run(agent, cwd="/", user=user, timeout=100)
    trace.verifier["mode"] = "shared"
    await invoke(task.stage_verifier, **given)
    await task.score(trace, sandbox)
    return trace


def loop(body: str) -> str:
    return f"nohup sh -c 'while :; do {body}; done' </dev/null >/dev/null 2>&1 &"


REWRITERS = {
    "the text": loop("echo 1 > /logs/verifier/reward.txt"),
    "the json": loop('echo {\\"reward\\": 1} > /logs/verifier/reward.json'),
    "by renaming": loop("echo 1 > /tmp/r; mv /tmp/r /logs/verifier/reward.txt"),
    "a link": loop("ln -sf /etc/hostname /logs/verifier/reward.json"),
    "with its folder": loop("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"),
}


@pytest.mark.parametrize("agent", REWRITERS.values(), ids=REWRITERS.keys())
async def test_a_process_that_keeps_rewriting_the_reward_earns_none(
    agent: str, make_task: MakeTask, sandbox: Sandbox
) -> None:
    task = load_task(make_task({"tests/test.sh": HONEST}), {})
    trace = await graded_beside(task, sandbox, agent)
    assert trace.status in (Status.SCORING_ERROR, Status.INDETERMINATE), trace.reason
    assert trace.reward is None
    assert trace.verifier["code"] in ("rewritten_reward", "unusable_sandbox")


async def test_a_service_that_leaves_the_reward_alone_goes_on_and_is_graded(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    body = "#!/bin/bash\na=$(cat /app/n); until [ $(cat /app/n) -gt $a ]; do sleep 0.02; done\n"
    body += "echo 1 > /logs/verifier/reward.txt; echo seen\n"
    task = load_task(make_task({"tests/test.sh": body}), {})
    agent = "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i > /app/m; mv /app/m /app/n; sleep 0.01; done' "
    agent += "</dev/null >/dev/null 2>&1 & until [ -e /app/n ]; do sleep 0.02; done"
    trace = await graded_beside(task, sandbox, agent)
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
    assert await sandbox.read("/logs/verifier/reward.txt") == b"1\n"
    assert await sandbox.read("/logs/verifier/test-stdout.txt") == b"seen\n"


async def test_an_agent_that_is_another_user_cannot_write_where_rewards_are_read(
    make_task: MakeTask, sandbox: Sandbox
) -> None:
    toml = "[agent]\nuser = 1234\n"
    task = load_task(make_task({"task.toml": toml, "tests/test.sh": HONEST}), {})
    trace = await graded_beside(task, sandbox, REWRITERS["the text"], "1234")
    assert (trace.status, trace.reward) == (Status.SCORED, 0.0), trace.reason


async def test_the_verifier_of_another_user_can_write_there_all_the_same(make_task: MakeTask, sandbox: Sandbox) -> None:
    toml = "[agent]\nuser = 1234\n[verifier]\nuser = 4321\n"
    body = "#!/bin/bash\nid -u; echo 1 > /logs/verifier/reward.txt\n"
    task = load_task(make_task({"task.toml": toml, "tests/test.sh": body}), {})
    trace = await graded_beside(task, sandbox, ":", "1234")
    assert (trace.status, trace.reward, trace.verifier["output_tail"]) == (Status.SCORED, 1.0, "4321\n")


async def test_a_reward_without_a_primary_is_put_back_as_it_was(make_task: MakeTask, sandbox: Sandbox) -> None:
    body = '#!/bin/bash\necho \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json\n'
    trace = await graded_beside(load_task(make_task({"tests/test.sh": body}), {}), sandbox, ":")
    assert (trace.status, trace.metrics) == (Status.SCORED, {"a": 1.0, "b": 2.0})
    assert await sandbox.read("/logs/verifier/reward.json") == b'{"a": 1, "b": 2}\n'
