from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkyard.report import report, to_json, to_text
from forkyard.report.passk import ks, pass_at_ks
from tests.report.test_report import of, scored, write


def found(tmp_path: Path, **tasks: list[Any]) -> dict[int, float]:
    """pass@k of tasks given by rewards; None is a scored attempt without a primary, "lost" one that was not scored."""
    lines = [
        {**scored(task, sample, None if reward == "lost" else reward), **_status(reward)}
        for task, rewards in tasks.items()
        for sample, reward in enumerate(rewards)
    ]
    (group,) = of(tmp_path, *lines).groups
    return {k: round(value, 4) for k, value in group.pass_at_k.items()}


def _status(reward: Any) -> dict[str, Any]:
    return {"status": "INDETERMINATE"} if reward == "lost" else {}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ({"a": [1, 1, 0, 0]}, {2: 0.8333, 4: 1}),
        ({"a": [1]}, {}),
        ({"a": [1, 0, 0, 0], "b": [1, 0]}, {2: 0.75}),
        ({"a": [1, 0, 0, 0, 0]}, {2: 0.4, 4: 0.8, 5: 1}),
        ({"a": [1] * 3 + [0] * 7}, {2: 0.5333, 4: 0.8333, 5: 0.9167, 8: 1, 10: 1}),
        ({"a": [1] * 3 + [0] * 13}, {2: 0.35, 4: 0.6071, 5: 0.7054, 8: 0.9, 10: 0.9643, 15: 1, 16: 1}),
        ({"a": [1, 0.5]}, {}),
        ({"a": [1, 0], "b": [0.25, 1]}, {}),
        ({"a": [1, None, None, 0]}, {2: 0.5, 4: 1}),
        ({"a": [None, None]}, {2: 0}),
        ({"a": [1, "lost"]}, {2: 1}),
        ({"a": [1, "lost", "lost", "lost"], "b": [1, 1, 0, 0]}, {2: 0.6667, 4: 1}),
        ({"a": [1 - 1e-12, 0]}, {2: 1}),
    ],
    ids=str,
)
def test_pass_at_k_counts_every_attempt_and_a_missing_primary_as_no_success(
    tmp_path: Path, tasks: dict[str, list[Any]], expected: dict[int, float]
) -> None:
    assert found(tmp_path, **tasks) == expected


def test_k_is_a_power_of_two_or_a_multiple_of_five() -> None:
    assert ks(1) == [] and ks(2) == [2] and ks(5) == [2, 4, 5] and ks(16) == [2, 4, 5, 8, 10, 15, 16]
    assert pass_at_ks([]) == {}


def test_pass_at_k_is_told_in_both_forms_and_not_of_a_run_that_is_unfinished(tmp_path: Path) -> None:
    records = [scored("a", sample, sample % 2) for sample in range(4)]
    finished = of(tmp_path, *records)
    assert json.loads(to_json(finished))["groups"][0]["pass_at_k"] == {"2": pytest.approx(5 / 6), "4": 1.0}
    assert "every rollout counted: pass@2 0.83, pass@4 1\n" in to_text(finished)
    run = tmp_path / "r"
    write(run / "traces.jsonl", *records)
    (run / "plan.json").write_text(json.dumps({"run": "r", "tasks": {"a": {}}, "samples": 5}))
    (group,) = report([run]).groups
    assert group.pass_at_k == {}


def test_a_run_of_some_rollouts_of_another_is_finished_when_those_are_there(tmp_path: Path) -> None:
    run = tmp_path / "r"
    write(run / "traces.jsonl", scored("a", 0, 1), scored("a", 2, 1))
    plan = {"run": "r", "tasks": {"a": {}}, "samples": 5, "regraded": {"a": [0, 2]}}
    (run / "plan.json").write_text(json.dumps(plan))
    (told,) = report([run]).runs
    assert (told.planned, told.recorded, list(told.notes)) == (2, 2, [])
