"""What a report averages, what it keeps apart and why, and what it says of a run that is not finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkyard.env import AgentConfig
from forkyard.report import report, to_json, to_text
from forkyard.run import Plan, PlannedTask


def line(run: str, task: str, sample: int = 0, reward: float | None = 1, **fields: Any) -> dict[str, Any]:
    given = {"harness": "bash", "model": "m", "task_digest": f"{task}1", "verifier": {"mode": "forked"}}
    status = "INFRASTRUCTURE_ERROR" if reward is None else "SCORED"
    return {"run": run, "task": task, "sample": sample, "reward": reward, "status": status, **given, **fields}


def run_of(root: Path, name: str, *records: dict[str, Any], plan: dict[str, Any] | None = None) -> Path:
    """A run's directory with these lines, and a plan when it is given one."""
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "traces.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if plan is not None:
        agent = {"harness": "bash", **{key: plan[key] for key in plan.keys() & AgentConfig.model_fields.keys()}}
        others = {key: plan[key] for key in plan.keys() - agent.keys()}
        full: dict[str, Any] = {"run": name, "paths": ("tasks",), "agent": agent, **others}
        full["tasks"] = {task: PlannedTask(digest="x") for task in full.get("tasks", ("a",))}
        (directory / "plan.json").write_text(Plan(**full).model_dump_json())
    return directory


def rows(*paths: Path) -> list[dict[str, tuple[int, float | None]]]:
    return [
        {row.task: (row.rollouts, row.mean_reward) for row in (*group.rows, group.overall)}
        for group in report(paths).groups
    ]


def test_runs_over_the_same_tasks_add_up(tmp_path: Path) -> None:
    paths = [run_of(tmp_path, name, line(name, "a", reward=r), line(name, "b")) for name, r in (("x", 0), ("y", 1))]
    assert rows(*paths) == [{"a": (2, 0.5), "b": (2, 1), "overall": (4, 0.75)}]
    assert "tables" not in to_text(report(paths))


def test_a_run_over_a_changed_task_is_kept_apart_whole(tmp_path: Path) -> None:
    first = run_of(tmp_path, "x", line("x", "b"), line("x", "a", reward=0))
    second = run_of(tmp_path, "y", line("y", "b"), line("y", "a", task_digest="a2"))
    third = run_of(tmp_path, "z", line("z", "a", reward=1))
    assert rows(first, second, third) == [
        {"a": (2, 0.5), "b": (1, 1), "overall": (3, 0.75)},
        {"a": (1, 1), "b": (1, 1), "overall": (2, 1)},
    ]
    text = to_text(report([first, second, third]))
    assert text.startswith("harness bash, model m, runs x, z, graded forked\ntask ")
    assert "\n\nharness bash, model m, run y, graded forked\n" in text
    said = "2 tables, kept apart and never averaged: they differ in the content of a (task_digest)"
    assert text.endswith(f"\n{said}")
    values = json.loads(to_json(report([first, second, third])))
    assert [group["runs"] for group in values["groups"]] == [["x", "z"], ["y"]] and said in values["notes"]


def test_rollouts_graded_in_another_mode_are_kept_apart(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"verifier": {"mode": "shared"}}
    one = run_of(tmp_path, "x", line("x", "a"), line("x", "b", **shared))  # each task has its own mode
    two = run_of(tmp_path, "y", line("y", "a", **shared), line("y", "b", **shared))
    assert rows(one) == [{"a": (1, 1), "b": (1, 1), "overall": (2, 1)}]
    assert len(rows(one, two)) == 2
    assert to_text(report([one, two])).endswith("they differ in grading mode (forked, shared)")


def test_a_rollout_that_was_never_graded_stays_with_its_run(tmp_path: Path) -> None:
    lost: dict[str, Any] = {"reward": None, "verifier": {}}
    one = run_of(tmp_path, "x", line("x", "a", 0, **lost), line("x", "a", 1), line("x", "a", 2, **lost))
    two = run_of(tmp_path, "y", line("y", "a", verifier={"mode": "shared"}), line("y", "a", 1, **lost))
    assert [group["a"][0] for group in rows(one, two)] == [3, 2]


def test_lines_of_one_run_that_contradict_each_other_are_kept_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path, "x", line("x", "a", 0), line("x", "a", 1, reward=0, task_digest="a2"), line("x", "a", 2))
    assert [group["a"] for group in rows(run)] == [(2, 1), (1, 0)]


def test_models_harnesses_and_settings_are_told_apart(tmp_path: Path) -> None:
    plan = {"model": "m", "max_turns": 5, "harness": {"id": "bash", "tool_mode": "fenced"}}
    one = run_of(tmp_path, "x", line("x", "a"), plan=plan)
    two = run_of(tmp_path, "y", line("y", "a"), plan={"model": "m"})
    three = run_of(tmp_path, "z", line("z", "a", harness="oracle", model=None), plan={})
    text = to_text(report([one, two, three]))
    assert [block.split("\n")[0] for block in text.split("\n\n")[:3]] == [
        "harness bash, model m, run x, graded forked, max_turns 5, tool_mode fenced",
        "harness bash, model m, run y, graded forked",
        "harness oracle, model -",
    ]
    assert text.endswith(
        "3 tables, kept apart and never averaged: they differ in harness (bash, oracle); in model (-, m); "
        "in setting (max_turns 5, tool_mode fenced | the defaults)"
    )


def test_runs_that_share_nothing_but_their_name_are_two(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", "x", line("x", "a", reward=0), plan={})
    two = run_of(tmp_path / "two", "x", line("x", "a", reward=1), plan={})
    assert rows(one, two) == [{"a": (2, 0.5), "overall": (2, 0.5)}]
    (group,) = report([one, two]).groups
    assert group.runs == (str(one), str(two))


def test_an_unfinished_run_is_said_plainly(tmp_path: Path) -> None:
    plan = {"samples": 4, "tasks": ("a", "b")}
    foreign = line("x", "elsewhere")
    run = run_of(tmp_path, "x", line("x", "a"), line("x", "b", reward=0), line("x", "a", 9), foreign, plan=plan)
    text = to_text(report([run]))
    assert "run x is unfinished: planned 8 rollouts, have 2; its numbers are interim" in text
    assert f"forkyard resume {run}" in text and "95% intervals, interim: " in text
    assert json.loads(to_json(report([run])))["runs"] == [
        {"run": "x", "directory": str(run), "planned": 8, "recorded": 2}
    ]
    whole = run_of(tmp_path, "y", line("y", "a"), plan={})
    assert "unfinished" not in to_text(report([whole])) and "interim" not in to_text(report([whole]))


@pytest.mark.parametrize(
    ("sampling", "told", "said"),
    [
        ({"return_token_ids": True}, {}, True),
        ({"extra_body": {"return_token_ids": True}}, {}, True),
        ({"return_token_ids": True}, {"branches": [{"message": {}}, {"token_ids": [1, 2]}]}, False),
        ({"return_token_ids": True}, {"calls": [{"token_ids": [1]}]}, False),
        ({"return_token_ids": True}, {"steps": 0}, False),
        ({"temperature": 1}, {}, False),
    ],
)
def test_token_ids_that_were_asked_for_and_never_told_are_said(
    tmp_path: Path, sampling: dict[str, Any], told: dict[str, Any], said: bool
) -> None:
    for plan in ({"sampling": sampling}, {"env_config": {"agent": {"sampling": sampling}}}):
        place = tmp_path / next(iter(plan))
        run = run_of(place, "x", line("x", "a", **{"steps": 1, **told}), plan=plan)
        assert ("run x asked for token ids" in to_text(report([run]))) == said


def test_a_plan_that_cannot_be_read_is_said_and_ends_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, "x", line("x", "a"))
    for content in ("{", "[]", '{"run": "x", "tasks": 5}', "[" * 100_000):
        (run / "plan.json").write_text(content)
        text = to_text(report([run]))
        assert "overall  1" in text and "whether run x is finished is not known" in text


def test_a_column_that_cannot_have_a_value_is_left_out(tmp_path: Path) -> None:
    once = run_of(tmp_path, "x", line("x", "a"), line("x", "b", reward=None))
    text = to_text(report([once]))
    assert "pass@1" in text and "pass@2" not in text
    assert json.loads(to_json(report([once])))["groups"][0]["overall"]["pass@2"] is None
    twice = run_of(tmp_path, "y", line("y", "a", 0), line("y", "a", 1, reward=None))
    assert "pass@2 needs 2 scored rollouts: undefined (-)" in to_text(report([twice]))
