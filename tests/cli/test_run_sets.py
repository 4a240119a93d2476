"""`forkyard run` with sets of tasks: the commands of docs/tasks.md, and what is said when a set cannot be had."""

from __future__ import annotations

import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from forkyard.run import read_plan
from tests.cli.forkyard import Forkyard
from tests.run.parts import lines, write_task

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """An archive, and the same set in a registry called shelf."""
    root = tmp_path / "tasks"
    for name in ("a", "ab", "b"):
        write_task(root, name)
    with tarfile.open(tmp_path / "set-1.0.tar.gz", "w:gz") as archive:
        archive.add(root, "set")
    shutil.copytree(root, tmp_path / "shelf/org/set/1.0")
    return root


def played(tmp_path: Path, run: str) -> list[str]:
    return sorted(line["task"] for line in lines(tmp_path / "runs" / run))


def test_the_commands_of_the_page(forkyard: Forkyard, sets: Path, tmp_path: Path, home: Path) -> None:
    commands = [
        line.removeprefix("$ forkyard ")
        for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("$ forkyard run ")
    ]
    assert len(commands) == 3
    shutil.copytree(tmp_path / "shelf", home / "tasksets")
    try:
        for command in commands:
            done = forkyard(*shlex.split(command))
            assert (done.returncode, done.stderr) == (0, ""), command
    finally:
        shutil.rmtree(home / "tasksets")
    assert played(tmp_path, "archive") == ["t/a", "t/ab", "t/b"]
    assert played(tmp_path, "named") == ["t/a"]
    assert played(tmp_path, "shelf") == ["t/a"]
    plan = read_plan(tmp_path / "runs/shelf")
    assert (plan.registered, plan.registry, plan.paths) == (("org/set@1.0",), tmp_path / "shelf", ())
    again = forkyard("resume", tmp_path / "runs/shelf")
    assert (again.returncode, again.stderr) == (0, "")


def test_a_run_of_a_set_that_changed_does_not_go_on(forkyard: Forkyard, sets: Path, tmp_path: Path) -> None:
    arguments = ("-d", "org/set@1.0", "--registry", "shelf", "-a", "nop", "--base", "host", "--run", "r")
    assert forkyard("run", *arguments).returncode == 0
    traces = tmp_path / "runs/r/traces.jsonl"
    traces.write_text("".join(traces.read_text().splitlines(keepends=True)[:1]))
    (tmp_path / "shelf/org/set/1.0/a/instruction.md").write_text("Other.\n")
    refused = forkyard("resume", tmp_path / "runs/r")
    assert refused.returncode == 1 and "changed since run r began: task t/a" in refused.stderr
    shutil.rmtree(tmp_path / "shelf/org/set/1.0/a")
    assert "no longer in org/set@1.0: task t/a" in forkyard("resume", tmp_path / "runs/r").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-d", "org/none@1.0", "--registry", "shelf"), "import_failed: the registry shelf holds no 'org/none'"),
        (("-d", "https://a.test/x@main"), "import_failed: https://a.test/x@main names no commit"),
        (("-d", "./nowhere.tar"), "import_failed: nowhere.tar cannot be unpacked: No such file or directory"),
        (("tasks", "-x", "*"), "left to play of 3 tasks (t/a, t/ab, t/b): all are left out by names '*'. Change -x"),
        (("tasks", "-i", "c*", "-i", "d"), "none matches names 'c*', names 'd'. Change -i (of eval: --select.include)"),
        ((), "name a task directory"),
    ],
)
def test_what_cannot_be_had_is_said_and_nothing_starts(
    arguments: tuple[str, ...], said: str, forkyard: Forkyard, sets: Path, tmp_path: Path
) -> None:
    done = forkyard("run", *arguments, "-a", "oracle", "--base", "host")
    assert done.returncode == 1 and said in done.stderr.replace("\n", " ").replace(f"{tmp_path}/", "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("gpus = 1\n", "t/big/task.toml, line 5: environment.gpus = 1: needs gpus, which the provider local does not"),
        ('os = "windows"\n', 'environment.os = "windows": needs windows, which the provider local does not promise'),
        ('tpu = {type = "v4", topology = "2x2"}\n', "environment.tpu: needs tpu, which the provider local"),
    ],
)
def test_a_machine_that_nobody_has_is_refused_before_anything_starts(
    toml: str, said: str, forkyard: Forkyard, tmp_path: Path
) -> None:
    task = write_task(tmp_path / "tasks", "big", toml=toml)
    (task / "tests/test.bat").write_text("echo 1\n")
    done = forkyard("run", "tasks", "-a", "oracle", "--base", "host")
    assert done.returncode == 1 and said.removeprefix("t/big/") in done.stderr.replace("\n", " ")
    assert not (tmp_path / "runs").exists()


def test_sets_are_named_the_same_way_to_eval_and_to_validate(forkyard: Forkyard, sets: Path, tmp_path: Path) -> None:
    named = ("-d", "org/set@1.0", "--registry", "shelf", "--base", "host")
    done = forkyard("eval", *named, "--env.agent.harness", "nop", "--run.name", "r")
    assert done.returncode == 0, done.stderr
    assert played(tmp_path, "r") == ["t/a", "t/ab", "t/b"]
    assert read_plan(tmp_path / "runs/r").registered == ("org/set@1.0",)
    done = forkyard("eval", "set-1.0.tar.gz", "--base", "host", "--env.agent.harness", "nop", "--dry-run")
    assert done.returncode == 0 and "t/a, t/ab, t/b" in done.stdout, done.stderr
    done = forkyard("validate", *named, "--only-setup")
    assert done.returncode == 0 and "3 tasks: 3 valid" in done.stdout, done.stderr
    for command in ("eval", "validate"):
        assert "https://a.test/x@main names no commit" in forkyard(command, "https://a.test/x@main").stderr
        assert "one TASKSET at a time" in forkyard(command, "tasks", *named).stderr
