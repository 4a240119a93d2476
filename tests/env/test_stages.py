"""Tasks with steps, by the conformance ids of the task format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forkyard as vf
from forkyard.env import SingleAgentEnv, UserSimEnv, agent_at
from forkyard.harness import OracleHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.task import VerifierMode, load_task
from forkyard.trace import Status
from tests.env.parts import Acts, play, roles, seat

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = '[task]\nname = "cases/steps"\n[environment]\ndocker_image = "host"\nworkdir = "/app"\n'
SCORES = "#!/bin/bash\necho {} > /logs/verifier/reward.txt\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(tmp_path_factory.mktemp("home")) as provider:
        yield provider


def staged(root: Path, toml: str, *steps: Mapping[str, str | int | float], **files: str) -> vf.Task:
    """A task whose steps are called one, two, three: `solve` is what the agent does there, `score` what it earns."""
    tables, written = "", {"environment/nothing": "", **files}
    for name, step in zip(("one", "two", "three"), steps, strict=False):
        tables += f'[[steps]]\nname = "{name}"\n{step.get("toml", "")}\n'
        place = f"steps/{name}"
        written[f"{place}/instruction.md"] = f"Do {name}.\n"
        written[f"{place}/solution/solve.sh"] = f"#!/bin/bash\n{step.get('solve', ':')}\n"
        score = SCORES.format(step.get("score", 1))
        written[f"{place}/tests/test.sh"] = str(step.get("test", score))
        written |= {f"{place}/{path}": str(text) for path, text in step.items() if "/" in path}
    for path, text in {"task.toml": toml + HEAD + tables, **written}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return load_task(root, {})


async def played(provider: LocalProvider, task: vf.Task, **fields: Any) -> vf.Trace:
    assert task.unplayable == ()
    episode = await play(SingleAgentEnv(), task, {"agent": seat(provider, OracleHarness(), **fields)})
    return episode.traces[0]


def statuses(trace: vf.Trace) -> list[tuple[str, str, float | None]]:
    return [(stage["name"], stage["status"], stage["reward"]) for stage in trace.verifier["stages"]]


BOTH = pytest.mark.parametrize("mode", ["shared", "forked"])


@BOTH
async def test_s1_all_steps_are_played_in_order_on_one_disk_and_one_trace(
    mode: VerifierMode, provider: LocalProvider, tmp_path: Path
) -> None:
    looks = '#!/bin/bash\n[ "$(cat /app/log)" = "$(printf \'1\\n2\')" ] && echo 0.5 > /logs/verifier/reward.txt\n'
    task = staged(tmp_path, "", {"solve": "echo 1 >> log"}, {"solve": "echo 2 >> log", "test": looks})
    trace = await played(provider, task, verifier=mode)
    assert statuses(trace) == [("one", "SCORED", 1.0), ("two", "SCORED", 0.5)]
    assert (trace.status, trace.reward, trace.stop_condition) == (Status.SCORED, 0.75, "agent_completed")
    assert [message["content"] for message in trace.messages if message["role"] == "user"] == ["Do one.\n", "Do two.\n"]


async def test_s2_the_strategy_final_takes_the_last_one_that_was_played(
    provider: LocalProvider, tmp_path: Path
) -> None:
    task = staged(tmp_path, 'multi_step_reward_strategy = "final"\n', {"score": 1}, {"score": 0.25})
    assert (await played(provider, task)).reward == 0.25


async def test_s3_and_s8_each_step_has_its_own_logs_and_manifest(provider: LocalProvider, tmp_path: Path) -> None:
    first = {"solve": "echo a > /logs/agent/a; echo x > /app/x", "toml": 'artifacts = ["/app/x"]'}
    task = staged(tmp_path / "task", "", first, {"solve": "echo b > /logs/agent/b"})
    trace = await played(provider, task, keep_logs_in=tmp_path / "kept")
    kept = tmp_path / "kept" / trace.id
    assert [path.name for path in kept.iterdir()] == ["steps"]
    assert [path.name for path in (kept / "steps/two/agent").iterdir()] == ["b"]
    assert (kept / "steps/one/verifier/reward.txt").read_text() == "1\n"
    assert (kept / "steps/one/artifacts/app/x").read_text() == "x\n"
    manifest = json.loads((kept / "steps/one/artifacts/manifest.json").read_text())
    assert [(entry["source"], entry["status"]) for entry in manifest] == [
        ("/logs/artifacts", "empty"),
        ("/app/x", "ok"),
    ]


async def test_s4_and_s5_the_steps_tests_lie_over_the_tasks_and_nothing_else_does(
    provider: LocalProvider, tmp_path: Path
) -> None:
    lists = "#!/bin/bash\n(cd /tests; ls; cat both); echo 1 > /logs/verifier/reward.txt\n"
    files = {"tests/test.sh": lists, "tests/both": "task", "tests/shared": ""}
    one = {"tests/own": "", "tests/both": "step", "test": lists}
    task = staged(tmp_path, "", one, {"test": lists}, **files)
    trace = await played(provider, task)
    told = [stage["verifier"]["output_tail"].split() for stage in trace.verifier["stages"]]
    assert told == [["both", "own", "shared", "test.sh", "step"], ["both", "shared", "test.sh", "task"]]


THIEF = (
    "nohup sh -c 'while :; do cp -r /tests /logs/verifier /app/stolen 2>/dev/null; sleep 0.01; done' "
    "</dev/null >/dev/null 2>&1 &"
)
LOOK = "#!/bin/bash\nls /tests /app/stolen/* > /app/seen 2>/dev/null; sleep 0.2; ls -R /app/stolen >> /app/seen\n"


@BOTH
async def test_the_tests_of_a_step_never_meet_the_agent_of_the_next(
    mode: VerifierMode, provider: LocalProvider, tmp_path: Path
) -> None:
    secret = "#!/bin/bash\nsleep 0.2; echo 1 > /logs/verifier/reward.txt\n"
    one = {"solve": f"mkdir -p /app/stolen; {THIEF}", "test": secret, "tests/secret": "x"}
    tells = "#!/bin/bash\ncat /app/seen; echo 1 > /logs/verifier/reward.txt\n"
    task = staged(tmp_path, "", one, {"solve": LOOK.removeprefix("#!/bin/bash\n"), "test": tells})
    trace = await played(provider, task, verifier=mode)
    seen = trace.verifier["stages"][1]["verifier"]["output_tail"]
    assert "test.sh" not in seen and "secret" not in seen and "reward" not in seen


async def test_s6_what_breaks_the_sandbox_ends_the_rest_and_leaves_no_score(
    provider: LocalProvider, tmp_path: Path
) -> None:
    breaks = {"solve": "rm -rf /usr/lib64/ld-linux* /lib64/ld-linux* /lib/*/ld-linux* /usr/lib/*/ld-linux*"}
    task = staged(tmp_path, "", {"score": 1}, breaks, {"score": 1})
    trace = await played(provider, task, verifier="forked")
    assert (trace.status, trace.reward) == (Status.INDETERMINATE, None)
    assert "'two'" in str(trace.reason)


async def test_s7_the_workdir_of_a_step_is_brought_and_its_setup_run_as_the_agents_user(
    provider: LocalProvider, tmp_path: Path
) -> None:
    step = {
        "workdir/data": "given",
        "workdir/setup.sh": "id -u > who; pwd >> who",
        "toml": "[steps.agent]\nuser = 1234\n[steps.verifier]\nuser = 0",
        "test": "#!/bin/bash\ncat who data; echo 1 > /logs/verifier/reward.txt\n",
    }
    task = staged(tmp_path, "", {"solve": "chmod 777 ."}, step)
    trace = await played(provider, task)
    assert trace.verifier["stages"][1]["verifier"]["output_tail"] == "1234\n/app\ngiven"


async def test_s10_the_deadline_and_the_environment_of_a_step_are_its_own(
    provider: LocalProvider, tmp_path: Path
) -> None:
    step = {
        "solve": "sleep 30",
        "toml": '[steps.agent]\ntimeout_sec = 0.3\n[steps.verifier.env]\nB = "step"',
        "test": "#!/bin/bash\necho $A $B; echo 1 > /logs/verifier/reward.txt\n",
    }
    task = staged(tmp_path, '[verifier.env]\nA = "task"\nB = "task"\n', step, {})
    trace = await played(provider, task)
    first, second = trace.verifier["stages"]
    assert (first["stop"], first["timeout"], first["verifier"]["output_tail"]) == ("agent_timeout", True, "task step\n")
    assert (second["stop"], trace.reward, trace.is_timeout) == ("agent_completed", 1.0, True)


async def test_s12_a_setup_that_fails_leaves_the_agent_out_and_is_no_second_try(
    provider: LocalProvider, tmp_path: Path
) -> None:
    fails = {"workdir/setup.sh": "echo why >&2; exit 3", "solve": "touch /app/acted"}
    trace = await played(provider, staged(tmp_path, "", {"score": 1}, fails, {}))
    assert (trace.status, trace.reward) == (Status.SCORING_ERROR, None)
    assert "setup.sh exited 3: why" in str(trace.reason)
    assert [stage["status"] for stage in trace.verifier["stages"]] == ["SCORED", "SCORING_ERROR", "NOT_RUN"]


async def test_a_setup_that_fails_before_any_agent_acted_is_infrastructure(
    provider: LocalProvider, tmp_path: Path
) -> None:
    task = staged(tmp_path, "", {"workdir/setup.sh": "exit 3"}, {})
    trace = await played(provider, task, retries=vf.RetryConfig(max_retries=0))
    assert trace.status is Status.INFRASTRUCTURE_ERROR


async def test_s13_a_step_without_a_score_lets_the_next_begin_and_leaves_the_whole_without_one(
    provider: LocalProvider, tmp_path: Path
) -> None:
    trace = await played(provider, staged(tmp_path, "", {"score": "x"}, {"score": 1}))
    assert statuses(trace) == [("one", "SCORING_ERROR", None), ("two", "SCORED", 1.0)]
    assert (trace.status, trace.verifier["code"]) == (Status.SCORING_ERROR, "stage_not_scored")


GATES = {
    "r8 met": ("min_reward = 0.5", 0.5, True),
    "r8 missed": ("min_reward = 0.5", 0.49, False),
    "r8 no reward": ("min_reward = 0.5", "", False),
    "r9 one of two": ("min_reward = {reward = 0.5, style = 1}", 0.5, False),
}


@pytest.mark.parametrize(("gate", "score", "goes_on"), GATES.values(), ids=GATES.keys())
async def test_gates(gate: str, score: float | str, goes_on: bool, provider: LocalProvider, tmp_path: Path) -> None:
    trace = await played(provider, staged(tmp_path, "", {"toml": gate, "score": score}, {}))
    assert (trace.verifier["stages"][1]["status"] == "SCORED") is goes_on


async def test_a_step_is_healthy_after_its_setup(provider: LocalProvider, tmp_path: Path) -> None:
    health = "[steps.healthcheck]\ncommand = 'test -e /app/ready'\ninterval_sec = 0.01"
    step = {"toml": health, "workdir/setup.sh": "touch ready"}
    assert (await played(provider, staged(tmp_path, "", {}, step))).reward == 1.0


async def test_numbers_of_all_steps_are_meant_by_name_a_missing_one_being_0(
    provider: LocalProvider, tmp_path: Path
) -> None:
    both = '#!/bin/bash\necho \'{"reward": 1, "speed": 4}\' > /logs/verifier/reward.json\n'
    trace = await played(provider, staged(tmp_path, "", {"test": both}, {"score": 0}))
    assert (trace.reward, trace.metrics) == (0.5, {"speed": 2.0})


async def test_a_separate_verifier_of_a_task_with_steps_is_refused(provider: LocalProvider, tmp_path: Path) -> None:
    task = staged(tmp_path, "", {})
    (problem,) = SingleAgentEnv().problems(task, {"agent": seat(provider, OracleHarness(), verifier="separate")})
    assert "separate_not_available_for_steps" in problem


@BOTH
async def test_each_step_reaches_what_it_says_and_the_baseline_while_it_is_set_up(
    mode: VerifierMode, provider: LocalProvider, tmp_path: Path
) -> None:
    tells = "echo {} ${{http_proxy:+proxy}} >> /app/log"
    wide = '[steps.agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]'
    one = {"solve": tells.format("one"), "toml": wide}
    two = {"solve": tells.format("two"), "workdir/setup.sh": tells.format("setup")}
    two["test"] = f"#!/bin/bash\n{tells.format('test')}; cat /app/log; echo 1 > /logs/verifier/reward.txt\n"
    toml = '[environment]\nnetwork_mode = "no-network"\n'
    task = staged(tmp_path, "", one, two)
    text = (tmp_path / "task.toml").read_text().replace("[environment]\n", toml)
    (tmp_path / "task.toml").write_text(text)
    task = load_task(tmp_path, {})
    assert vf.Feature.LIVE_NETWORK in task.needs
    trace = await played(provider, task, verifier=mode)
    told = trace.verifier["stages"][1]["verifier"]["output_tail"].splitlines()
    assert told == ["one proxy", "setup", "two", "test"]


async def test_each_step_is_a_conversation_of_its_own_and_limits_hold_over_all_of_them(
    provider: LocalProvider, tmp_path: Path
) -> None:
    task = staged(tmp_path, "", {}, {}, {})
    agent = Acts({"content": "one"}, {"content": "two"}, {"content": "three"})
    limited = seat(provider, agent, limits=vf.AgentLimits(max_turns=2))
    (trace,) = (await play(SingleAgentEnv(), task, {"agent": limited})).traces
    assert roles(trace.messages) == ["user", "assistant", "user", "assistant", "user"]
    assert [stage["stop"] for stage in trace.verifier["stages"]] == ["agent_completed", "agent_completed", "max_turns"]
    assert (trace.steps, len(trace.calls), trace.stop_condition, trace.reward) == (2, 2, "max_turns", 1.0)
    line = trace.to_record()
    assert vf.Trace.from_record(line).to_record() == line


async def test_a_task_in_stages_cannot_be_talked_through(provider: LocalProvider, tmp_path: Path) -> None:
    agent = agent_at(seat(provider, Acts({"content": "one"})))
    with pytest.raises(ValueError, match="played in stages"):
        async with agent.interaction(staged(tmp_path, "", {})):
            pass


async def test_a_simulated_user_is_refused_a_task_in_stages(provider: LocalProvider, tmp_path: Path) -> None:
    seats = {name: seat(provider, Acts({"content": "one"})) for name in ("assistant", "user")}
    problems = UserSimEnv().problems(staged(tmp_path, "", {}), seats)
    assert [text for text in problems if "task.toml:" in text and "cannot be talked through" in text], problems


async def test_steps_whose_scoring_is_put_off_are_played_and_not_graded(
    provider: LocalProvider, tmp_path: Path
) -> None:
    task = staged(tmp_path, "", {}, {"solve": "touch /app/second"})
    put_off = task.defer_scoring()
    trace = await agent_at(seat(provider, OracleHarness())).run(put_off)
    assert trace.status is None and "stages" not in trace.verifier
    assert [message["role"] for message in trace.messages] == ["user", "assistant"] * 2
