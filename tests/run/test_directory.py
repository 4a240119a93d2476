from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.run import Plan, read_plan
from forkyard.run.directory import RunDirectory, place_problems
from forkyard.run.plan import check_name
from tests.run.parts import lines, plan_of


def line(task: str, sample: int, status: str, **fields: Any) -> dict[str, Any]:
    id_ = f"{task}{sample}{status}"
    return {"run": "r", "task": task, "sample": sample, "status": status, "id": id_, "episode": f"e{id_}", **fields}


def write(path: Path, *records: dict[str, Any], end: str = "\n") -> None:
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)[:-1] + end)


def made(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(plan_of(tmp_path))


FULL = """
import resource, sys
from forkyard.errors import ConfigError
from forkyard.run.directory import RunDirectory
from forkyard.run.plan import Plan
plan = Plan.model_validate_json(sys.stdin.read())
resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))
try:
    RunDirectory.create(plan)
except ConfigError as err:
    print(err, file=sys.stderr)
"""


def test_a_run_without_room_for_its_plan_says_where_and_what_to_do(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FULL], input=plan.model_dump_json(), stderr=subprocess.PIPE, text=True, check=True
    )
    assert done.stderr == (
        f"{plan.place}/plan.json cannot be written: File too large; make room there, or choose another place for the "
        "run with -o\n"
    )


def test_lines_to_be_played_again_move_and_the_others_stay_as_they_were(tmp_path: Path) -> None:
    good = line("a", 0, "SCORED", text="\u2028 \x85 \x0b ü")
    failed, other = line("a", 1, "INFRASTRUCTURE_ERROR"), line("b", 0, "SCORING_ERROR")
    with made(tmp_path) as directory:
        write(directory.traces, good, failed, other)
        recorded = directory.recorded()
        assert recorded.again == {("a", 1): "INFRASTRUCTURE_ERROR"}
        before = directory.traces.read_bytes().split(b"\n")
        directory.withdraw(recorded.again)
        assert directory.traces.read_bytes().split(b"\n") == [before[0], before[2], b""]
        assert lines(directory.path, "superseded.jsonl") == [failed]
        assert directory.recorded().attempts[("a", 1)] == 1


def test_a_kill_between_the_two_files_leaves_nothing_twice(tmp_path: Path) -> None:
    good, failed = line("a", 0, "SCORED"), line("a", 1, "INFRASTRUCTURE_ERROR")
    with made(tmp_path) as directory:
        write(directory.traces, good, failed)
        write(directory.superseded, failed)
        (directory.path / "traces.jsonl.new").write_text('{"half a')
        directory.withdraw(directory.recorded().again)
        assert lines(directory.path) == [good]
        assert lines(directory.path, "superseded.jsonl") == [failed]
        assert not (directory.path / "traces.jsonl.new").exists()


def test_of_two_lines_of_a_slot_the_later_stays(tmp_path: Path) -> None:
    first, second = line("a", 0, "INFRASTRUCTURE_ERROR"), line("a", 0, "SCORED", attempt=1)
    with made(tmp_path) as directory:
        write(directory.traces, first, second)
        directory.withdraw(directory.recorded().again)
        assert lines(directory.path) == [second] and lines(directory.path, "superseded.jsonl") == [first]


def test_logs_without_a_line_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept, withdrawn, lost = "a" * 32, "b" * 32, "c" * 32
    with made(tmp_path) as directory:
        write(directory.traces, {**line("a", 0, "SCORED"), "id": kept})
        write(directory.superseded, {**line("a", 1, "CANCELLED"), "id": withdrawn})
        for name in (kept, withdrawn, lost, "mine"):
            (directory.rollouts / name / "agent").mkdir(parents=True)
        (directory.rollouts / lost / "agent" / "link").symlink_to(tmp_path)
        directory.sweep()
        assert sorted(path.name for path in directory.rollouts.iterdir()) == [kept, withdrawn, "mine"]
        assert directory.traces.exists()


def test_when_nothing_is_to_be_moved_no_file_is_touched(tmp_path: Path) -> None:
    with made(tmp_path) as directory:
        write(directory.traces, line("a", 0, "SCORED"))
        inode = directory.traces.stat().st_ino
        directory.withdraw({})
        assert directory.traces.stat().st_ino == inode and not directory.superseded.exists()


def test_what_a_kill_left_of_saving_the_plan_is_in_nobodys_way(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    (run / "plan.json.new").write_text('{"run"')
    with made(tmp_path):
        assert read_plan(run) == plan_of(tmp_path).model_copy(update={"created": read_plan(run).created})


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "x" * 300])
def test_a_run_is_named_like_one_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of one directory"):
        check_name(name)


def test_a_file_in_the_place_of_the_directory_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        made(tmp_path)


def test_why_a_place_cannot_be_had_is_known_before_and_nothing_is_left_there(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert place_problems(plan) == [] and not plan.out.exists()
    plan.place.mkdir(parents=True)
    (plan.place / "plan.json.new").write_text("{")
    assert place_problems(plan) == [] and [path.name for path in plan.place.iterdir()] == ["plan.json.new"]
    (plan.place / "mine").write_text("")
    assert place_problems(plan) == [f"{plan.place} is not empty: choose another name for the run"]
    (plan.place / "mine").unlink()
    with made(tmp_path):
        (said,) = place_problems(plan)
    assert "already contains results: go on with them by `forkyard resume " in said
    assert place_problems(plan, clean=True) == []
    for name in ("file", "file/below", "nowhere", "nowhere/x", "/proc/x"):
        out = tmp_path / name
        (tmp_path / "file").write_text("")
        (tmp_path / "nowhere").unlink(missing_ok=True)
        (tmp_path / "nowhere").symlink_to("none")
        (said,) = place_problems(plan.model_copy(update={"out": out}))
        assert said.startswith(f"{out}/{plan.run} cannot be made: ")
    (said,) = place_problems(plan.model_copy(update={"run": "..", "out": Path("/proc/x")}))
    assert "cannot be a run's name" in said


def test_a_run_makes_room_for_another_only_when_it_is_told_to(tmp_path: Path) -> None:
    with made(tmp_path) as directory:
        directory.traces.write_text("")
        with pytest.raises(ConfigError, match="being played by another process"):
            RunDirectory.create(plan_of(tmp_path), clean=True)
    with pytest.raises(ConfigError, match="already contains results"):
        made(tmp_path)
    assert directory.traces.exists()
    with RunDirectory.create(plan_of(tmp_path), clean=True):
        assert not directory.traces.exists() and read_plan(directory.path).run == plan_of(tmp_path).run


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no run"),
        ("", "no plan of a run"),
        ('{"run": "r"}', "agent: Field required"),
        ('{"run": "r", "paths": [], "agent": {"harness": "nop"}, "sampels": 3}', "sampels: Extra inputs"),
        ('{"run": "r", "paths": [], "agent": {"harness": "nop"}, "samples": 0}', "samples"),
    ],
)
def test_a_plan_that_cannot_be_read_names_the_file_and_the_place(
    tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ConfigError, match=said) as caught:
        RunDirectory.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_plan_is_the_same_after_saving(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, options={"script": "ü"}, agent_timeout=1.5, verifier="forked", model="m\x1b[2J")
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
