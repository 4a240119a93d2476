from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.run import Outcome, Plan, Regrade, check_regrade, read_plan, regrade, resume, start
from forkyard.run.regrade import agent_part
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.keeping import KeepPolicy
from forkyard.sandbox.local import LocalProvider
from forkyard.task import Task, TaskData
from forkyard.trace import ModelCall, Status, Trace
from forkyard.trace.costs import keep_attempts, new_cost, total_cost
from tests.model.provider import playing, reply
from tests.run.parts import CHECK, Heard, Naps, agent_of, lines, plan_of, write_task

WRONG = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n"
QUESTIONS = (Path(__file__).parent / "python_tasks.py").read_text()
COUNTING = """import forkyard as vf
from tests.run.python_tasks import Calculator

class Counting(Calculator):
    async def score(self, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        trace.record_metric("words", 3)
"""
ARTIFACT = 'artifacts = ["/app/answer.txt"]\n'


def good_tests(tmp_path: Path, check: str = CHECK) -> Path:
    directory = tmp_path / "good-tests"
    directory.mkdir()
    (directory / "test.sh").write_text(check)
    return directory


async def played(tmp_path: Path, home: Path, **fields: Any) -> Path:
    given = {"verifier": "forked", **fields}
    await start(plan_of(tmp_path, **given), Heard(), provider=LocalProvider(home))
    return tmp_path / "runs" / str(given.get("run", "r"))


async def again(tmp_path: Path, home: Path, source: Path, heard: Heard | None = None, **fields: Any) -> Outcome:
    wanted = Regrade(source=source, out=tmp_path / "runs", run=fields.pop("run", "again"), **fields)
    return await regrade(wanted, heard or Heard(), provider=LocalProvider(home))


def files_of(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("mode", ["forked", "separate"])
async def test_g6_wrong_tests_are_put_right_without_playing_the_agent_again_or_touching_the_run(
    tmp_path: Path, home: Path, mode: str
) -> None:
    toml = "" if mode == "forked" else '[verifier]\nenvironment_mode = "separate"\n'
    task = write_task(tmp_path / "tasks", "a", check=WRONG, toml=toml)
    if mode == "separate":
        (task / "task.toml").write_text(ARTIFACT + (task / "task.toml").read_text())
    source = await played(tmp_path, home, samples=2, verifier="forked" if mode == "forked" else None)
    assert [line["reward"] for line in lines(source)] == [0.0, 0.0]
    before = files_of(source)
    outcome = await again(tmp_path, home, source, tests=good_tests(tmp_path))
    assert (outcome.planned, outcome.recorded, outcome.errored, outcome.stopped) == (2, 2, 0, None)
    assert files_of(source) == before
    old, new = {line["id"]: line for line in lines(source)}, lines(tmp_path / "runs" / "again")
    assert [line["reward"] for line in new] == [1.0, 1.0]
    assert {line["info"]["regraded_from"] for line in new} == set(old)
    for line in new:
        first = old[line["info"]["regraded_from"]]
        kept = (
            "task",
            "sample",
            "model",
            "messages",
            "calls",
            "usage",
            "agent_ms",
            "fork_ms",
            "stop",
            "harness",
            "env",
        )
        assert {name: line[name] for name in kept} == {name: first[name] for name in kept}
        assert line["id"] != first["id"] and line["run"] == "again" and line["task_digest"] != first["task_digest"]
        assert line["verifier"]["mode"] == mode and line["grade_ms"] > 0
    plan = read_plan(tmp_path / "runs" / "again")
    assert (plan.action, plan.source, plan.regraded) == ("regrade", source.absolute(), {"t/a": (0, 1)})


async def test_the_present_tests_are_used_when_no_others_are_named(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a", check=WRONG)
    source = await played(tmp_path, home)
    (task / "tests" / "test.sh").write_text(CHECK)
    heard = Heard()
    await again(tmp_path, home, source, heard)
    assert [line["reward"] for line in lines(tmp_path / "runs" / "again")] == [1.0]
    assert any("changed since run r" in note for note in heard.notes)


async def test_what_the_agent_left_is_graded_as_it_was_whatever_the_verifier_did_there(
    tmp_path: Path, home: Path
) -> None:
    spoils = f"{CHECK}rm -f /app/answer.txt\ntouch /app/seen\n"
    write_task(tmp_path / "tasks", "a", check=spoils)
    source = await played(tmp_path, home)
    strict = CHECK.replace("= done ]", "= done ] && [ ! -e /app/seen ] && [ ! -e /tests/old ]")
    for name in ("one", "two"):
        await again(tmp_path, home, source, run=name)
        assert [line["reward"] for line in lines(tmp_path / "runs" / name)] == [1.0]
    await again(tmp_path, home, source, run="three", tests=good_tests(tmp_path, strict))
    assert [line["reward"] for line in lines(tmp_path / "runs" / "three")] == [1.0]


async def test_a_kept_disk_can_be_verified_apart(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a")
    (task / "task.toml").write_text(ARTIFACT + (task / "task.toml").read_text())
    source = await played(tmp_path, home)
    await again(tmp_path, home, source, verifier="separate")
    (line,) = lines(tmp_path / "runs" / "again")
    assert (line["reward"], line["verifier"]["mode"]) == (1.0, "separate")


async def test_what_cannot_be_graded_again_is_said_and_the_rest_is(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "broken", docker="FROM debian:bookworm-slim\nWORKDIR /app\nRUN false\n")
    source = await played(tmp_path, home, samples=2, retries=0)
    heard = Heard()
    outcome = await again(tmp_path, home, source, heard)
    assert (outcome.planned, outcome.recorded) == (2, 2)
    assert [note for note in heard.notes if note.startswith("not graded again")] == [
        "not graded again: 2 rollouts (t/broken #0, t/broken #1): it ended as INFRASTRUCTURE_ERROR and was never graded"
    ]
    with pytest.raises(ConfigError, match="INFRASTRUCTURE_ERROR"):
        await again(tmp_path, home, source, run="none", task="t/broken")
    assert not (tmp_path / "runs" / "none").exists()


async def test_g1_shared_verification_leaves_no_disk_to_grade_again(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home, verifier=None)
    with pytest.raises(ConfigError, match="among the hidden files.*--verifier forked"):
        await again(tmp_path, home, source)


async def test_artifacts_that_a_shared_verifier_never_met_are_graded_apart(tmp_path: Path, home: Path) -> None:
    check = "#!/bin/bash\necho vandal > /app/answer.txt; echo 0 > /logs/verifier/reward.txt\n"
    task = write_task(tmp_path / "tasks", "a", check=check)
    (task / "task.toml").write_text(ARTIFACT + (task / "task.toml").read_text())
    source = await played(tmp_path, home, verifier=None)
    assert [(line["reward"], line["verifier"]["mode"]) for line in lines(source)] == [(0.0, "shared")]
    before = files_of(source)
    with pytest.raises(ConfigError, match="no disk is kept of that: grade its artifacts with --verifier separate"):
        await again(tmp_path, home, source, tests=good_tests(tmp_path))
    await again(tmp_path, home, source, tests=tmp_path / "good-tests", verifier="separate")
    (line,) = lines(tmp_path / "runs" / "again")
    assert (line["reward"], line["verifier"]["mode"]) == (1.0, "separate"), line["reason"]
    assert files_of(source) == before


async def test_g4_artifacts_alone_are_no_disk_and_others_were_not_collected(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a", toml='[verifier]\nenvironment_mode = "separate"\n')
    toml = (task / "task.toml").read_text()
    (task / "task.toml").write_text(ARTIFACT + toml)
    source = await played(tmp_path, home, verifier=None)
    with pytest.raises(ConfigError, match="the artifacts are kept, and no disk"):
        await again(tmp_path, home, source, verifier="forked")
    (task / "task.toml").write_text('artifacts = ["/app/answer.txt", "/app/more"]\n' + toml)
    with pytest.raises(ConfigError, match="not collected: /app/more"):
        await again(tmp_path, home, source)
    (task / "task.toml").write_text('artifacts = [{source = "/app/answer.txt", exclude = ["*.o"]}]\n' + toml)
    with pytest.raises(ConfigError, match="leaves out other parts of artifacts than it did: /app/answer.txt"):
        await again(tmp_path, home, source)
    (task / "task.toml").write_text('artifacts = [{source = "/app/answer.txt", destination = "a"}]\n' + toml)
    await again(tmp_path, home, source)  # where it lies on the host is nothing to a verifier


async def test_g5_g8_what_stopped_the_agent_stands_and_what_the_verifier_ran_into_does_not(
    tmp_path: Path, home: Path
) -> None:
    toml = '[agent]\ntimeout_sec = 0.3\n[verifier]\nenvironment_mode = "separate"\n'
    solve = "#!/bin/bash\nmkdir /app/out; echo done > /app/answer.txt; sleep 100\n"
    task = write_task(
        tmp_path / "tasks", "a", solve=solve, check="#!/bin/bash\nmkdir /logs/verifier/reward.txt\n", toml=toml
    )
    (task / "task.toml").write_text('artifacts = ["/app/answer.txt", "/app/out"]\n' + (task / "task.toml").read_text())
    source = await played(tmp_path, home, verifier=None)
    (before,) = lines(source)
    assert (before["stop"], before["status"]) == ("agent_timeout", "SCORING_ERROR")
    check = '#!/bin/bash\n[ -z "$(ls -A /app/out)" ] && echo 1 > /logs/verifier/reward.txt\n'
    await again(tmp_path, home, source, tests=good_tests(tmp_path, check))
    (line,) = lines(tmp_path / "runs" / "again")
    assert (line["stop"], line["timeout"], line["status"], line["reward"]) == ("agent_timeout", True, "SCORED", 1.0)
    assert line["verifier"]["code"] == "scored" and line["error"] is None


async def test_g7_collected_artifacts_that_are_gone_are_told(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a", toml='[verifier]\nenvironment_mode = "separate"\n')
    (task / "task.toml").write_text(ARTIFACT + (task / "task.toml").read_text())
    source = await played(tmp_path, home, verifier=None)
    (collected,) = source.glob("rollouts/*/collected")
    for broken in ("{}", '[{"path": "/app"}]', '[{"path": "/app/answer.txt", "archive": "9.tar"}]', "["):
        (collected / "manifest.json").write_text(broken)
        with pytest.raises(ConfigError, match="what was collected of it cannot be read|not collected"):
            await again(tmp_path, home, source)


async def test_g2_a_task_that_is_gone_or_has_another_name_is_refused(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "b")
    source = await played(tmp_path, home)
    toml = task / "task.toml"
    toml.write_text(toml.read_text().replace("t/a", "t/other"))
    heard = Heard()
    await again(tmp_path, home, source, heard)
    assert "not graded again: 1 rollout (t/a #0): its task is no longer there" in heard.notes
    toml.write_text(toml.read_text() + "[nonsense]\n")
    with pytest.raises(ConfigError, match="cannot be loaded: .*nonsense"):
        await again(tmp_path, home, source, run="none")


async def test_statuses_and_tasks_choose_and_mistakes_are_named(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "silent", check="#!/bin/bash\ntrue\n")
    source = await played(tmp_path, home)
    tests = good_tests(tmp_path)
    await again(tmp_path, home, source, status=Status.INDETERMINATE, tests=tests)
    (line,) = lines(tmp_path / "runs" / "again")
    assert (line["task"], line["status"], line["reward"]) == ("t/silent", "SCORED", 1.0)
    for fields, said in (
        ({"status": Status.BUDGET}, "none of the rollouts"),
        ({"task": "t/none"}, "run r has"),
        ({"tests": tests}, "choose one with --task"),
        ({"tests": tmp_path}, "no test.sh"),
    ):
        with pytest.raises(ConfigError, match=said):
            await again(tmp_path, home, source, run="none", **fields)
    with pytest.raises(ConfigError, match=f"was graded again from {source}: grade {source} again"):
        await again(tmp_path, home, tmp_path / "runs" / "again", run="none")
    assert not (tmp_path / "runs" / "none").exists()


async def test_a_run_that_is_at_work_is_left_alone(tmp_path: Path, home: Path) -> None:
    from forkyard.run.directory import RunDirectory

    write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home)
    directory, _ = RunDirectory.open(source)
    with directory, pytest.raises(ConfigError, match="is being played by another process"):
        await again(tmp_path, home, source)


async def test_rollouts_that_were_not_played_yet_are_said(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home, samples=2)
    traces = source / "traces.jsonl"
    traces.write_text(traces.read_text().splitlines(keepends=True)[0])
    heard = Heard()
    await again(tmp_path, home, source, heard)
    assert any("has not been played" in note for note in heard.notes)
    assert len(lines(tmp_path / "runs" / "again")) == 1


async def test_a_regrade_that_was_killed_goes_on_where_it_was(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a", check=WRONG)
    source = await played(tmp_path, home, samples=3)
    await again(tmp_path, home, source, tests=good_tests(tmp_path))
    run = tmp_path / "runs" / "again"
    first = (run / "traces.jsonl").read_text().splitlines(keepends=True)
    (run / "traces.jsonl").write_text(first[0] + first[1][:100])
    outcome = await resume(run, Heard(), provider=LocalProvider(home), sleep=Naps())
    assert (outcome.planned, outcome.recorded, outcome.played) == (3, 3, 2)
    found = lines(run)
    assert [line["reward"] for line in found] == [1.0] * 3 and len({line["sample"] for line in found}) == 3
    assert len({line["info"]["regraded_from"] for line in found}) == 3
    (tmp_path / "good-tests" / "test.sh").write_text(WRONG)
    (run / "traces.jsonl").write_text(first[0])
    with pytest.raises(ConfigError, match="changed since run again began"):
        await resume(run, Heard(), provider=LocalProvider(home))


async def test_kept_disks_go_by_age_and_size_and_then_say_so(tmp_path: Path, home: Path) -> None:
    write_task(
        tmp_path / "tasks", "a", solve="#!/bin/bash\necho done > /app/answer.txt\nhead -c 2M /dev/urandom > /app/big\n"
    )
    source = await played(tmp_path, home, samples=3, concurrent=1)
    ids = [line["id"] for line in lines(source)]
    async with LocalProvider(home) as local:
        mine = [disk for disk in await local.kept_disks() if disk.name in ids]
        assert [disk.name for disk in mine] == ids and all(disk.size and disk.size > 2e6 for disk in mine)
        total = sum(disk.size or 0 for disk in await local.kept_disks() if disk.created >= mine[1].created)
        gone = await local.prune_kept(KeepPolicy(total=total + 1000))
        assert ids[0] in [disk.name for disk in gone]
        assert ids[0] not in [disk.name for disk in await local.kept_disks()]
    heard = Heard()
    await again(tmp_path, home, source, heard)
    assert "not graded again: 1 rollout (t/a #0): its disk was pruned, or never kept" in heard.notes
    assert len(lines(tmp_path / "runs" / "again")) == 2
    async with LocalProvider(home) as local:
        await local.prune_kept(KeepPolicy(seconds=0.0))
        assert await local.kept_disks() == []
        assert await local.sweep() == []
    with pytest.raises(ConfigError, match="its disk was pruned, or never kept"):
        await again(tmp_path, home, source, run="none")


async def test_nothing_is_kept_when_the_policy_says_so(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a")
    monkeypatch.setenv("FORKYARD_KEEP_GB", "0")
    source = await played(tmp_path, home)
    async with LocalProvider(home) as local:
        assert lines(source)[0]["id"] not in [disk.name for disk in await local.kept_disks()]
    monkeypatch.setenv("FORKYARD_KEEP_GB", "much")
    with pytest.raises(ConfigError, match="FORKYARD_KEEP_GB=much"):
        await played(tmp_path, home, run="other")


async def test_runs_side_by_side_over_one_home_keep_and_grade_their_own(tmp_path: Path, home: Path) -> None:
    for name in ("one", "two"):
        write_task(tmp_path / name / "tasks", "a", check=WRONG)
    sources = await asyncio.gather(*(played(tmp_path / name, home, samples=4) for name in ("one", "two")))
    tests = good_tests(tmp_path)
    await asyncio.gather(
        *(again(source.parents[1], home, source, tests=tests) for source in sources),
        played(tmp_path / "one", home, run="more"),
    )
    for source in sources:
        new = lines(source.parent / "again")
        assert [line["reward"] for line in new] == [1.0] * 4
        assert {line["info"]["regraded_from"] for line in new} == {line["id"] for line in lines(source)}


async def test_secrets_of_a_task_are_on_no_line_and_in_no_kept_disk_s_row(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_TEST_SECRET", "sesame-open-1234567")
    toml = '[environment.env]\nTOKEN = "${FORKYARD_TEST_SECRET}"\n'
    says = f'{CHECK}echo token $TOKEN\n[ -n "$TOKEN" ] || echo 0 > /logs/verifier/reward.txt\n'
    write_task(tmp_path / "tasks", "a", toml=toml, check=says)
    source = await played(tmp_path, home)
    async with LocalProvider(home) as local:
        box = local.store.find("kept", lines(source)[0]["id"])
        assert box is not None and "TOKEN" not in box.config.env
    await again(tmp_path, home, source)
    (line,) = lines(tmp_path / "runs" / "again")
    assert line["reward"] == 1.0 and "sesame" not in json.dumps(line)


async def test_a_disk_that_a_restart_may_have_damaged_is_not_graded(home: Path) -> None:
    async with LocalProvider(home) as local:
        box = await local.create(SandboxSpec())
        await box.stop()
        await local.keep_disk(box, "half")
        local.yard.kept._db.execute("UPDATE kept SET boot = 'another' WHERE own = 1 AND boot IS NOT NULL")
        assert "half" not in [disk.name for disk in await local.kept_disks()]
        with pytest.raises(ConfigError, match="no kept disk 'half'"):
            await local.from_kept("half", SandboxSpec())
        assert "half" in [disk.name for disk in await local.prune_kept(KeepPolicy())]


async def test_keeping_a_disk_costs_a_rollout_next_to_nothing(home: Path) -> None:
    async with LocalProvider(home) as local:
        took = []
        for number in range(20):
            box = await local.create(SandboxSpec())
            await box.stop()
            began = time.perf_counter()
            await local.keep_disk(box, f"timed-{os.getpid()}-{number}")
            took.append(time.perf_counter() - began)
            await box.close()
        assert min(took) < 0.001  # at its best: the machine does other things too
        await local.prune_kept(KeepPolicy(seconds=0.0))


async def test_a_python_task_is_graded_again_and_metrics_of_the_agent_s_program_stand(
    tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "tasks.py"
    file.write_text(QUESTIONS.replace('"42"', '"41"'))
    counting = tmp_path / "counting.py"
    counting.write_text(COUNTING)
    sys.path.append(str(tmp_path))
    try:
        source = await played(tmp_path, home, paths=(file,), harness="counting:Counting", base=None, verifier=None)
        assert {line["task"]: line["reward"] for line in lines(source)} == {"sum": 1.0, "product": 0.0}
        file.write_text(QUESTIONS)
        await again(tmp_path, home, source)
    finally:
        sys.path.remove(str(tmp_path))
    new = lines(tmp_path / "runs" / "again")
    assert {line["task"]: line["reward"] for line in new} == {"sum": 1.0, "product": 1.0}
    assert {line["metrics"]["words"] for line in new} == {3.0}
    assert {line["verifier"]["mode"] for line in new} == {"forked"}


async def test_an_isolated_verifier_s_work_is_verified_again(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a", check=WRONG)
    (task / "task.toml").write_text(ARTIFACT + (task / "task.toml").read_text())
    source = await played(tmp_path, home, env="isolated-verifier", verifier=None)
    (task / "tests" / "test.sh").write_text(CHECK)
    await again(tmp_path, home, source)
    (line,) = lines(tmp_path / "runs" / "again")
    assert (line["reward"], line["env"], line["verifier"]["mode"]) == (1.0, "isolated-verifier", "separate")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"provider": "docker"}, "it was played on the provider docker, and the run's is local"),
        ({"calls": [{"purpose": "judge"}]}, "judges grade it"),
        ({"status": "CANCELLED"}, "it ended as CANCELLED and was never graded"),
        ({"verifier": {}, "reason": "the harness failed"}, "it was never graded .the harness failed."),
        ({"id": "0" * 32}, "its disk was pruned, or never kept"),
        ({"id": "0" * 32, "info": {"disk": "not kept: the disk is full"}}, "its disk was not kept: the disk is full"),
    ],
    ids=str,
)
async def test_each_reason_not_to_grade_again_is_told(
    tmp_path: Path, home: Path, change: dict[str, Any], said: str
) -> None:
    write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home)
    (line,) = lines(source)
    (source / "traces.jsonl").write_text(json.dumps({**line, **change}) + "\n")
    with pytest.raises(ConfigError, match=said):
        await again(tmp_path, home, source)


async def test_envs_that_score_several_traces_together_are_refused(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home, env="best-of-n", env_config={"n": 2})
    with pytest.raises(ConfigError, match="best-of-n, whose agents' traces are scored together"):
        await again(tmp_path, home, source)


async def test_g3_a_task_that_has_steps_or_asks_a_model_by_now_is_refused(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a")
    source = await played(tmp_path, home)
    toml = task / "task.toml"
    before = toml.read_text()
    toml.write_text(before + '[verifier.env]\nKEY = "${OPENAI_API_KEY}"\n')
    with pytest.raises(ConfigError, match="judges grade it"):
        await again(tmp_path, home, source)
    (task / "steps" / "one").mkdir(parents=True)
    (task / "steps" / "one" / "instruction.md").write_text("Do it.\n")
    toml.write_text(before + '[[steps]]\nname = "one"\n')
    with pytest.raises(ConfigError, match="its task has several steps"):
        await again(tmp_path, home, source)


JUDGED = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "judge-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it good?"}]})
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head)
said = json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]["content"]
open("/logs/verifier/reward.txt", "w").write(said)
"""


async def test_what_a_judge_graded_is_graded_again_once_somebody_asks_for_it(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key-of-nobody")
    write_task(tmp_path / "tasks", "a", check=JUDGED, toml='[verifier.env]\nOPENAI_API_KEY = "${OPENAI_API_KEY}"\n')
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\nmodel = "judge-1"\ninput = 1000.0\noutput = 1000.0\n')
    async with playing(reply("0.25"), reply("0.75")) as upstream:
        source = await played(tmp_path, home, base_url=upstream.url, prices=prices)
        with pytest.raises(ConfigError, match="judges grade it: .*; --ask-judges does so"):
            await again(tmp_path, home, source)
        wanted = Regrade(source=source, out=tmp_path / "runs", run="asked", model_settings={"budget_usd": 1.0})
        plan, notes = await check_regrade(wanted, provider=LocalProvider(home))
        assert (plan.regraded, notes, len(upstream.asked)) == ({"t/a": (0,)}, (), 1)
        assert not plan.place.exists()
        await regrade(wanted, Heard(), provider=LocalProvider(home))
    (old,), (new,) = lines(source), lines(tmp_path / "runs" / "asked")
    assert (old["reward"], new["reward"], len(upstream.asked)) == (0.25, 0.75, 2)
    assert [call["purpose"] for call in new["calls"]] == ["judge"], "those of the verdict before went with it"
    assert new["cost_usd"] == new["verifier"]["judge_cost_usd"] == pytest.approx(0.015)
    saved = read_plan(tmp_path / "runs" / "asked")
    assert (saved.ask_judges, saved.budget_usd, saved.prices, saved.base_url) == (True, 1.0, prices, upstream.url)


def test_a_regraded_rollout_costs_its_run_what_its_judges_do() -> None:
    trace = Trace(task="a")
    trace.record_call(ModelCall(cost_usd=2.0))
    trace.record_call(ModelCall(cost_usd=0.5, purpose="judge"))
    trace.verifier["mode"] = "forked"
    task = Task(TaskData(name="a", prompt="x"))
    part = agent_part(trace.to_record(), trace.slot, task)
    assert (part.cost_usd, len(part.calls)) == (2.0, 1)
    part.record_call(ModelCall(cost_usd=0.25, purpose="judge"))
    record = part.to_record()
    assert (total_cost(record), new_cost(record), new_cost(trace.to_record())) == (2.25, 0.25, 2.5)
    last = agent_part(trace.to_record(), trace.slot, task)
    keep_attempts(last, "episode", [("the judge's model failed", [part])])
    (entry,) = last.info["earlier_attempts"]
    assert (entry["cost_usd"], new_cost(last.to_record())) == (0.25, 0.25)


def test_a_plan_holds_what_is_graded_again_alone() -> None:
    plan = Plan(paths=(Path("x"),), agent=agent_of("nop"), samples=3, regraded={"a": (0, 2), "b": (1,)})
    plan = plan.model_copy(update={"tasks": {"a": None, "b": None}})
    assert plan.planned == 3
    assert [plan.holds("a", sample) for sample in range(4)] == [True, False, True, False]
