"""Two runs compared by the tasks that both played."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.report import Comparison, compare, comparison_json, comparison_text, report, to_text
from forkyard.report.stats import paired_difference, sign_test


def line(run: str, task: str, sample: int, reward: float | None, **fields: Any) -> dict[str, Any]:
    status = "SCORED" if reward is not None else "INDETERMINATE"
    own = {"run": run, "task": task, "sample": sample, "harness": "bash", "model": "m", "task_digest": task}
    return {**own, "status": status, "reward": reward, **fields}


def run_of(tmp_path: Path, run: str, earned: dict[str, list[float | None]], **fields: Any) -> Path:
    lines = [line(run, task, i, value, **fields) for task, values in earned.items() for i, value in enumerate(values)]
    place = tmp_path / run
    place.mkdir()
    (place / "traces.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return place


def of(tmp_path: Path, a: dict[str, list[float | None]], b: dict[str, list[float | None]]) -> Comparison:
    return compare(run_of(tmp_path, "a", a), run_of(tmp_path, "b", b))


def test_the_paired_difference_has_the_values_of_a_hand_worked_case() -> None:
    found = paired_difference([0.1, 0.5, 0.2], [0.2, 0.7, 0.5])
    assert found is not None and found.interval is not None  # differences 0.1, 0.2, 0.3: Student's t with 2 degrees
    assert found.value == pytest.approx(0.2) and found.error == pytest.approx(0.1 / 3**0.5)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.2 - 0.248414, 0.2 + 0.248414), abs=1e-6)
    assert found.p == pytest.approx(0.0741799, abs=1e-6)
    assert found.detectable == pytest.approx(2.801585 * 0.1 / 3**0.5, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [([0.5], [1.0]), ([0.0, 0.5], [0.25, 0.75]), ([1.0, 0.0], [1.0, 0.0])])
def test_without_a_spread_between_tasks_there_is_no_interval(a: list[float], b: list[float]) -> None:
    found = paired_difference(a, b)
    assert found is not None and (found.error, found.interval, found.p, found.detectable) == (None,) * 4
    assert paired_difference([], []) is None


def test_the_interval_covers_the_true_difference_and_is_shorter_than_one_without_pairs() -> None:
    rng = random.Random(7)
    runs, tasks, samples, gain = 600, 20, 4, 0.2
    covered, shorter = 0, 0
    for _ in range(runs):
        hard = [rng.betavariate(0.4, 0.4) for _ in range(tasks)]
        a = [sum(rng.random() < p for _ in range(samples)) / samples for p in hard]
        b = [sum(rng.random() < p + gain * (1 - p) for _ in range(samples)) / samples for p in hard]
        found = paired_difference(a, b)
        assert found is not None and found.interval is not None and found.error is not None
        covered += found.interval.low <= gain / 2 <= found.interval.high
        means = sum(a) / tasks, sum(b) / tasks
        apart = sum((x - m) ** 2 for values, m in zip((a, b), means, strict=True) for x in values)
        shorter += found.error < (apart / (tasks - 1) / tasks) ** 0.5
    assert 0.92 <= covered / runs <= 0.98
    assert shorter / runs > 0.99


def test_a_task_is_one_value_however_many_samples_it_has(tmp_path: Path) -> None:
    found = of(tmp_path, {"x": [0.0] * 4, "y": [1.0]}, {"x": [1.0, 0.0], "y": [1.0] * 8})
    assert [pair.difference for pair in found.pairs] == [0.5, 0.0]
    assert found.reward is not None and (found.reward.tasks, found.reward.value) == (2, 0.25)
    assert (found.better, found.worse, found.solved_by_a, found.solved_by_b) == (1, 0, (), ("x",))


def test_what_has_no_reward_is_left_out_and_both_readings_are_given(tmp_path: Path) -> None:
    found = of(
        tmp_path, {"x": [1.0, 1.0], "y": [0.0], "z": [1.0]}, {"x": [1.0, None], "y": [0.5], "z": [None], "w": [1.0]}
    )
    assert found.reward is not None and (found.reward.tasks, found.reward.value) == (2, 0.25)
    assert found.strict is not None and found.strict.tasks == 3
    assert found.strict.value == pytest.approx((-0.5 + 0.5 - 1.0) / 3)
    assert found.solved_by_a == ()  # nobody knows what B made of z
    assert found.notes == (
        "only in B, and left out: 1 task: w",
        "without a reward in A or in B, and left out of the differences: 1 task: z",
        "not scored in B: 2 of 5 rollouts: INDETERMINATE 2",
    )
    assert "counted as a failure: A 0.67, B 0.33, B - A -0.33" in comparison_text(found)


def test_tasks_that_changed_in_between_are_left_out(tmp_path: Path) -> None:
    a = run_of(tmp_path, "a", {"x": [1.0], "y": [0.0]})
    b = run_of(tmp_path, "b", {"y": [1.0]})
    with (b / "traces.jsonl").open("a") as lines:
        lines.write(json.dumps(line("b", "x", 0, 0.0, task_digest="another")) + "\n")
    found = compare(a, b)
    assert [pair.task for pair in found.pairs] == ["y"]
    assert found.notes[0].startswith("changed between the runs, and left out: 1 task: x; forkyard regrade")


def graded_again(tmp_path: Path, run: str, source: Path, rewards: list[float | None], info: str) -> Path:
    """The first rollouts of a run with other rewards, by tasks that have changed; `info` is where that is said."""
    read = [json.loads(text) for text in (source / "traces.jsonl").read_text().splitlines()]
    place = tmp_path / run
    place.mkdir()
    lines = []
    for old, reward in zip(read, rewards, strict=False):
        origin = {"replay": {"id": old["id"]}} if info == "replay" else {"regraded_from": old["id"]}
        own = line(run, old["task"], old["sample"], reward, task_digest="mended", id=f"{run}-{old['id']}", info=origin)
        lines.append(json.dumps(own) + "\n")
    (place / "traces.jsonl").write_text("".join(lines))
    return place


def source_of(tmp_path: Path) -> Path:
    """Two tasks, two rollouts of each, in the order x, x, y, y."""
    place = tmp_path / "a"
    place.mkdir()
    lines = [line("a", task, i, value, id=f"{task}{i}") for task, value in (("x", 0.0), ("y", 1.0)) for i in range(2)]
    (place / "traces.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return place


@pytest.mark.parametrize("info", ["regraded_from", "replay"])
def test_rollouts_that_were_graded_again_are_held_against_themselves_whatever_became_of_the_task(
    tmp_path: Path, info: str
) -> None:
    a = source_of(tmp_path)
    b = graded_again(tmp_path, "b", a, [1.0, 0.0, None], info)
    found = compare(a, b)
    assert [(pair.task, pair.a.rollouts, pair.difference) for pair in found.pairs] == [("x", 2, 0.5), ("y", 1, None)]
    assert found.reward is not None and found.reward.tasks == 1, "the task is the unit"
    assert found.notes[:4] == (
        "the same 3 rollouts, in A as graded first and in B graded again: each is held against itself",
        "only in A, and left out: 1 rollout",
        "another reward in B than in A: 2 rollouts: x #0 (0 -> 1), y #0 (1 -> no reward)",
        "changed between the gradings: 2 tasks: x, y",
    )
    values = json.loads(comparison_json(found))["same_rollouts"]
    assert values["rollouts"] == 3 and values["changed"][0] == {"rollout": "x #0", "a": 0.0, "b": 1.0}
    back = compare(b, a)
    assert back.notes[0].startswith("the same 3 rollouts, in A graded again and in B as graded first")
    assert [pair.difference for pair in back.pairs] == [-0.5, None]


def test_two_gradings_of_one_run_are_compared_by_what_both_graded(tmp_path: Path) -> None:
    a = source_of(tmp_path)
    one = graded_again(tmp_path, "b", a, [1.0, 1.0, 1.0], "regraded_from")
    two = graded_again(tmp_path, "c", a, [1.0, 0.0], "regraded_from")
    found = compare(one, two)
    assert [(pair.task, pair.difference) for pair in found.pairs] == [("x", -0.5)]
    assert found.notes[0] == "the same 2 rollouts, in A graded again and in B graded again: each is held against itself"


def test_a_run_that_was_graded_again_from_another_is_compared_as_ever(tmp_path: Path) -> None:
    b = graded_again(tmp_path, "b", source_of(tmp_path), [1.0], "regraded_from")
    other = run_of(tmp_path, "other", {"x": [0.0]}, task_digest="mended", id="of another")
    assert compare(other, b).same is None and compare(other, b).pairs[0].difference == 1.0


def test_runs_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    a, other = run_of(tmp_path, "a", {"x": [1.0]}), run_of(tmp_path, "other", {"y": [1.0]})
    with pytest.raises(ConfigError, match="are the same run: name two"):
        compare(a, tmp_path / "a" / ".." / "a")
    with pytest.raises(ConfigError, match="they have no task in common"):
        compare(a, other)
    with (other / "traces.jsonl").open("a") as lines:
        lines.write(json.dumps(line("other", "x", 0, 0.0, model="n")) + "\n")
    with pytest.raises(ConfigError, match=r"more than one agent under one setting.*they differ in model \(m, n\)"):
        compare(a, other)
    with pytest.raises(ConfigError, match="does not exist"):
        compare(a, tmp_path / "nowhere")


def test_it_reads_as_a_table_with_a_verdict(tmp_path: Path) -> None:
    easy: dict[str, list[float | None]] = {f"t{i}": [i % 3 / 4] for i in range(6)}
    better: dict[str, list[float | None]] = {f"t{i}": [i % 3 / 4 + 0.5 - i % 2 / 10] for i in range(6)}
    found = of(tmp_path, easy, better)
    said = comparison_text(found).splitlines()
    assert said[0].startswith("A: ") and said[0].endswith("(run a, harness bash, model m)")
    assert said[3].split() == [
        "task",
        "A",
        "B",
        "B",
        "-",
        "A",
        "scored",
        "A",
        "scored",
        "B",
        "solved",
        "A",
        "solved",
        "B",
    ]
    assert said[4].split() == ["t0", "0", "0.5", "+0.5", *"1 of 1".split(), *"1 of 1".split(), "0", "0"]
    assert "6 tasks in common: B earns more in 6, less in 0, the same in 0 (sign test: p 0.031)" in said
    assert said[-1] == "B earns more on tasks like these: the interval does not hold 0"
    values = json.loads(comparison_json(found))
    assert values["sign_test_p"] == 2 / 2**6
    assert values["mean_reward"]["tasks"] == 6 and values["mean_reward"]["value"] == pytest.approx(0.45)
    assert [each["difference"] for each in values["tasks"]][:2] == pytest.approx([0.5, 0.4])


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, None), (1, 0, 1.0), (1, 1, 1.0), (5, 0, 2 / 32), (6, 0, 2 / 64), (8, 2, 2 * (1 + 10 + 45) / 1024)],
)
def test_the_sign_test_is_the_exact_binomial_one(better: int, worse: int, p: float | None) -> None:
    assert sign_test(better, worse) == sign_test(worse, better) == p


@pytest.mark.parametrize(
    ("tasks", "gain", "verdict"),
    [
        (1, 1.0, "of one task nothing follows for others like it"),
        (3, 0.0, "A and B earn the same in every task"),
        (5, 1.0, "no difference is shown: B earns more in all 5 tasks, but it takes six to rule out chance"),
        (6, 1.0, "B earns more on tasks like these: it does in all 6"),
    ],
)
def test_a_difference_that_is_the_same_in_every_task_has_a_verdict(
    tmp_path: Path, tasks: int, gain: float, verdict: str
) -> None:
    found = of(tmp_path, {f"t{i}": [0.0] for i in range(tasks)}, {f"t{i}": [gain] for i in range(tasks)})
    assert comparison_text(found).splitlines()[-1] == verdict


def test_where_no_difference_is_shown_the_last_line_says_what_would_show_one(tmp_path: Path) -> None:
    found = of(tmp_path, {f"t{i}": [0.0] for i in range(4)}, {f"t{i}": [i % 2] for i in range(4)})
    assert found.reward is not None and found.reward.error == pytest.approx(1 / 12**0.5)
    assert found.reward.tasks_needed == 11  # 4 * (2.801585 / 12**0.5 / 0.5)**2 is 10.47
    assert comparison_text(found).splitlines()[-1] == (
        "no difference is shown; with as many tasks of this kind a difference of 0.81 shows four times in five, "
        "and this one with about 11 tasks"
    )


def test_a_report_says_that_runs_were_added_up_and_keeps_them_apart_when_asked(tmp_path: Path) -> None:
    places = [run_of(tmp_path, name, {"x": [reward]}) for name, reward in (("a", 1.0), ("b", 0.0))]
    (pooled,) = report(places).groups
    assert "samples of 2 runs, a, b are added up: --by-run keeps them apart" in to_text(report(places))
    assert pooled.overall.mean_reward == 0.5
    apart = report(places, by_run=True)
    assert [(group.runs, group.overall.mean_reward) for group in apart.groups] == [(("a",), 1.0), (("b",), 0.0)]
    assert "they differ in run (a, b)" in to_text(apart) and "added up" not in to_text(apart)


def test_several_rewards_are_told_by_name(tmp_path: Path) -> None:
    rewards = {"right": {"score": 1.0, "weight": 0.5}, "polite": {"score": 0.25, "weight": 1.0}}
    said = to_text(report([run_of(tmp_path, "a", {"x": [0.75, 0.75]}, rewards=rewards)]))
    assert "\nrewards by name, before their weights: right 1, polite 0.25\n" in said
    one = run_of(tmp_path, "b", {"x": [1.0]}, rewards={"right": {"score": 1.0, "weight": 1.0}})
    assert "rewards by name" not in to_text(report([one]))
