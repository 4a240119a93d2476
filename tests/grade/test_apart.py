"""Mode shared: the agent's services live on, and cannot choose the score."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio

import forkyard as vf
from forkyard.grade.apart import apart_from_agent
from forkyard.sandbox import Feature, Sandbox, SandboxSpec, StandsApart
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_task
from forkyard.trace import Status
from tests.env.parts import Commands, play, seat
from tests.support.ordinary_user import CHECKOUT, home_of_the_user, run_as_user

HEAD = '[task]\nname = "cases/apart"\n[environment]\ndocker_image = "host"\nworkdir = "/app"\n'
MARK = "the-hidden-truth"
HONEST = f"""#!/bin/bash
# {MARK}
sleep 0.1
if grep -qx done answer.txt; then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
sleep 0.1
"""
# Rewrites the reward each time somebody has written it, and no sooner: what a watch before and after does not see.
WAITS_FOR_ITS_MOMENT = """
import os, time
while True:
    try:
        if os.path.getsize("/logs/verifier/reward.txt"):
            open("/logs/verifier/reward.txt", "w").write("1")
    except OSError:
        pass
    for name in os.listdir("/proc"):
        try:
            if b"/tests/test.sh" in open(f"/proc/{name}/cmdline", "rb").read():
                open(f"/proc/{name}/root/logs/verifier/reward.txt", "w").write("1")
                open(f"/proc/{name}/mem", "r+b")
        except OSError:
            pass
"""
SEARCHES = f"grep -rsl {MARK} / --include=test.sh --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr"


@pytest_asyncio.fixture(loop_scope="module")
async def standing_apart(local: LocalProvider) -> None:
    """Skip where nothing can stand apart."""
    box = await local.create(SandboxSpec())
    assert isinstance(box, StandsApart)
    apart = await box.apart(())
    if apart is not None:
        await apart.close()
    await box.close()
    if apart is None:
        pytest.skip("this kernel has no Landlock that scopes signals (Linux 6.12)")


def task_of(tmp_path: Path, script: str, toml: str = HEAD) -> vf.Task:
    for name, text in {"task.toml": toml, "instruction.md": "Do it.\n", "tests/test.sh": script}.items():
        path = tmp_path / "apart" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load_task(tmp_path / "apart", {})


def in_background(program: str) -> str:
    return f"nohup {program} </dev/null >/dev/null 2>&1 &"


async def graded(
    local: LocalProvider,
    tmp_path: Path,
    script: str,
    *commands: str,
    then: Callable[[Sandbox], object] | None = None,
    toml: str = HEAD,
) -> vf.Trace:
    agent = seat(local, Commands(*commands, then=then), keep_logs_in=tmp_path / "kept")
    episode = await play(vf.SingleAgentEnv(), task_of(tmp_path, script, toml), {"agent": agent})
    return episode.traces[0]


async def test_a_process_that_waits_for_its_moment_writes_no_reward(
    standing_apart: None, local: LocalProvider, tmp_path: Path
) -> None:
    async def waits(box: Sandbox) -> None:
        await box.write("/opt/wait.py", WAITS_FOR_ITS_MOMENT.encode())
        await box.run("mkdir -p /logs/agent; echo acted > /logs/agent/said.txt")
        await box.run(in_background("python3 /opt/wait.py"))

    trace = await graded(local, tmp_path, HONEST, then=waits)
    assert (trace.status, trace.reward, trace.verifier["apart"]) == (Status.SCORED, 0.0, True), trace.reason
    kept = tmp_path / "kept" / trace.id
    assert (kept / "verifier" / "reward.txt").read_text() == "0\n"
    assert (kept / "agent" / "said.txt").read_text() == "acted\n"


async def test_what_is_left_running_sees_no_hidden_file(
    standing_apart: None, local: LocalProvider, tmp_path: Path
) -> None:
    looks = "seen() { cat /app/seen | wc -l; }; n=$(seen); until [ $(seen) -ge $((n + 2)) ]; do sleep 0.02; done"
    script = HONEST.replace("sleep 0.1\n", f"{looks}; cat /app/seen\n", 1)
    searching = in_background(f"sh -c 'while :; do {SEARCHES} >> /app/seen; echo looked >> /app/seen; done'")
    trace = await graded(local, tmp_path, script, searching, "echo done > answer.txt; mv answer.txt /app/")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
    assert set(trace.verifier["output_tail"].split()) == {"looked"}


async def test_a_service_goes_on_and_can_be_tested(standing_apart: None, local: LocalProvider, tmp_path: Path) -> None:
    script = """#!/bin/bash
    kill -0 $(cat /app/pid) && pgrep -f http.server >/dev/null || exit 1
    exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /page HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q 'from the service' <&3 &&
      echo 1 > /logs/verifier/reward.txt
    """
    serves = in_background("python3 -m http.server -b 127.0.0.1 8080") + " echo $! > pid; "
    serves += "until bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080' 2>/dev/null; do sleep 0.02; done"
    trace = await graded(local, tmp_path, script, f"cd /app; echo from the service > page; {serves}")
    assert (trace.status, trace.reward, trace.verifier["apart"]) == (Status.SCORED, 1.0, True), trace.verifier


async def test_an_answer_in_the_root_is_graded_beside_what_was_left_running(
    standing_apart: None, local: LocalProvider, tmp_path: Path
) -> None:
    script = "#!/bin/bash\ngrep -qx 42 /answer.txt && echo 1 > /logs/verifier/reward.txt\n"
    trace = await graded(local, tmp_path, script, in_background("sleep 100"), "echo 42 > /answer.txt")
    assert (trace.status, trace.reward, trace.verifier["apart"]) == (Status.SCORED, 1.0, True), trace.reason


async def test_a_verifier_whose_agent_left_nothing_running_works_in_its_sandbox(
    local: LocalProvider, tmp_path: Path
) -> None:
    trace = await graded(local, tmp_path, HONEST, "echo done > /app/answer.txt")
    assert (trace.reward, trace.verifier["left_running"], "apart" in trace.verifier) == (1.0, False, False)


async def test_what_a_verifier_of_a_step_leaves_running_ends_with_it(
    standing_apart: None, local: LocalProvider, tmp_path: Path
) -> None:
    """Also where the next step goes on in the same sandbox, since it is lent."""
    box = await local.create(SandboxSpec())
    await box.run("mkdir -p /app /logs; " + in_background("sleep 1001"), cwd="/")
    script = "#!/bin/bash\nsetsid sleep 1002 &\necho 1 > /logs/verifier/reward.txt\n"
    task, trace = task_of(tmp_path, script), vf.Trace()
    trace.verifier["mode"] = "shared"
    apart = await apart_from_agent(task, trace, box)
    await task.stage_verifier(trace=trace, runtime=apart)
    await task.score(trace, apart)
    await apart.close()
    assert trace.reward == 1.0, trace.reason
    assert (await box.run("ps -e -o args= | grep -o '^sleep 100.'; ls /tests")).stdout == "sleep 1001\n"
    await box.close()


async def test_a_verifier_that_is_another_user_stands_apart_as_well(
    standing_apart: None, local: LocalProvider, tmp_path: Path
) -> None:
    if Feature.USERS not in local.features:
        pytest.skip("users cannot be used here")
    toml = HEAD + "[verifier]\nuser = 4321\n"
    script = "#!/bin/bash\nid -u; echo 1 > /logs/verifier/reward.txt\n"
    trace = await graded(local, tmp_path, script, in_background("sleep 100"), toml=toml)
    assert (trace.status, trace.reward, trace.verifier["output_tail"]) == (Status.SCORED, 1.0, "4321\n"), trace.reason


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
def test_a_verifier_stands_apart_at_an_ordinary_users(standing_apart: None, subordinate_ids: bool) -> None:
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    with home_of_the_user() as home:
        shutil.copytree(CHECKOUT / "examples/tasks/pantry-service", home / "task")
        command = [sys.executable, "-m", "forkyard.cli", "run", str(home / "task"), "-a", "oracle", "--base", "host"]
        command += ["--unbounded", "--out", str(home / "runs"), "--run", "one"]
        done = run_as_user(*command, home=home, subordinate_ids=subordinate_ids)
        assert done.returncode == 0, done.stderr
        record = json.loads((home / "runs/one/traces.jsonl").read_text())
    assert (record["status"], record["reward"], record["verifier"]["apart"]) == ("SCORED", 1.0, True), record
