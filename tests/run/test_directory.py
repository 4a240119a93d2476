from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.run import Plan, read_plan
from forkyard.run.directory import RunDirectory
from forkyard.run.plan import check_name
from tests.run.parts import lines, plan_of


def line(task: str, sample: int, status: str, **fields: Any) -> dict[str, Any]:
    id_ = f"{task}{sample}{status}"
    return {"run": "r", "task": task, "sample": sample, "status": status, "id": id_, "episode": f"e{id_}", **fields}


def write(path: Path, *records: dict[str, Any], end: str = "\n") -> None:
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)[:-1] + end)


def made(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(plan_of(tmp_path))


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
