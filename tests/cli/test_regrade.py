from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.forkyard import Forkyard
from tests.run.parts import CHECK, lines, until, write_task

WRONG = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n"
SLOW = f"{CHECK}sleep 0.3\n"


def good_tests(tmp_path: Path, check: str) -> Path:
    directory = tmp_path / "tests"
    directory.mkdir(exist_ok=True)
    (directory / "test.sh").write_text(check)
    return directory


def test_a_run_is_graded_again_by_other_tests_and_reported(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a", check=WRONG)
    first = forkyard("run", "tasks", "-a", "oracle", "--base", "host", "--verifier", "forked", "--run", "first")
    assert first.returncode == 0 and "1 disk kept to be graded again (for 7 days, 10 GB" in first.stdout
    traces = (tmp_path / "runs/first/traces.jsonl").read_bytes()
    tests = good_tests(tmp_path, CHECK)
    done = forkyard("regrade", "runs/first", "--tests", tests, "--run", "second", "--json")
    assert done.returncode == 0, done.stderr
    (group,) = json.loads(done.stdout)["groups"]
    assert group["overall"]["mean_reward"] == 1 and group["runs"] == ["second"]
    assert (tmp_path / "runs/first/traces.jsonl").read_bytes() == traces
    both = forkyard("report", "runs/first", "runs/second")
    assert both.returncode == 0 and both.stdout.count("overall") == 2
    unnamed = forkyard("regrade", "runs/first")
    assert unnamed.returncode == 0
    (same,) = (tmp_path / "runs").glob("first--regrade--????????")
    apart = json.loads(forkyard("report", "runs/first", same, "--json").stdout)["groups"]
    assert [group["overall"]["rollouts"] for group in apart] == [1, 1], "the same rollout is no second sample"
    assert list((tmp_path / "runs").glob("first--regrade--????????"))
    listed = forkyard("sandbox", "ls")
    assert listed.stdout.count("\n") == 1 and "kept beside these: " in listed.stderr and "10 GB" in listed.stderr


def test_a_rollout_that_cannot_be_graded_again_is_exit_1_with_the_reason(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "b", toml='[verifier]\nenvironment_mode = "separate"\n')
    assert forkyard("run", "tasks", "-a", "oracle", "--base", "host", "--run", "first").returncode == 0
    named = forkyard("regrade", "runs/first", "--task", "t/a", "--run", "none")
    assert named.returncode == 1 and "1 rollout (t/a #0): it was graded in the agent's own sandbox" in named.stderr
    assert not (tmp_path / "runs/none").exists()
    whole = forkyard("regrade", "runs/first", "--run", "some")
    assert "note: not graded again: 1 rollout (t/a #0)" in whole.stdout
    assert [line["task"] for line in lines(tmp_path / "runs/some")] == ["t/b"]
    assert forkyard("regrade", "runs/first", "--status", "FINE").returncode == 1
    assert forkyard("regrade", "runs").returncode == 1
    assert "did you mean runs/first?" in forkyard("regrade", "first").stderr


def test_a_dry_run_says_what_can_be_graded_again_and_why_the_rest_cannot(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "b", toml='[verifier]\nenvironment_mode = "separate"\n')
    assert forkyard("run", "tasks", "-a", "oracle", "--base", "host", "--run", "first").returncode == 0
    told = forkyard("regrade", "runs/first", "--run", "some", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "to grade   1 rollout of 1 task: t/b #0" in told.stdout and "nothing was graded" in told.stdout
    assert "note: not graded again: 1 rollout (t/a #0): it was graded in the agent's own sandbox" in told.stdout
    plan = forkyard("regrade", "runs/first", "--run", "some", "--dry-run", "--json")
    assert json.loads(plan.stdout)["regraded"] == {"t/b": [0]} and "not graded again: 1 rollout" in plan.stderr
    none = forkyard("regrade", "runs/first", "--task", "t/a", "--dry-run")
    assert none.returncode == 1 and "1 rollout (t/a #0): it was graded in the agent's own sandbox" in none.stderr
    alone = forkyard("regrade", "runs/first", "--budget-usd", "1", "--dry-run")
    assert alone.returncode == 1 and "--budget-usd" in alone.stderr and "add --ask-judges" in alone.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]


def test_a_killed_regrade_is_resumed_and_grades_nothing_twice(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a", check=SLOW)
    run = ("run", "tasks", "-a", "oracle", "--base", "host", "--verifier", "forked", "-k", "5", "-n", "5")
    assert forkyard(*run, "--run", "first").returncode == 0
    regrading = forkyard.started("regrade", "runs/first", "--run", "second", "-n", "1")
    second = tmp_path / "runs/second"
    try:
        assert until(lambda: len(lines(second)) >= 2)
    finally:
        regrading.send_signal(signal.SIGKILL)
        regrading.communicate()
    before = lines(second)
    assert 2 <= len(before) < 5
    done = forkyard("resume", "runs/second")
    assert done.returncode == 0, done.stderr
    found = lines(second)
    assert found[: len(before)] == before and sorted(line["sample"] for line in found) == [0, 1, 2, 3, 4]
    assert {line["info"]["regraded_from"] for line in found} == {line["id"] for line in lines(tmp_path / "runs/first")}
    replayed = forkyard("resume", "runs/second")
    assert replayed.returncode == 0 and "nothing to do" in replayed.stdout


def test_sweep_forgets_kept_disks_by_the_policy(forkyard: Forkyard, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    run = ("run", "tasks", "-a", "oracle", "--base", "host", "--verifier", "forked", "--run", "first")
    assert forkyard(*run).returncode == 0
    assert forkyard("sandbox", "sweep").returncode == 0
    assert forkyard("regrade", "runs/first", "--run", "second").returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKYARD_KEEP_GB", "0")
        swept = forkyard("sandbox", "sweep")
        assert "kept disk" in swept.stdout and swept.returncode == 0
    gone = forkyard("regrade", "runs/first", "--run", "third")
    assert gone.returncode == 1 and "its disk was pruned, or never kept" in gone.stderr
