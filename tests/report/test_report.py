import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.report import Report, report, shown, to_json, to_text
from forkyard.trace import Reward, Slot, Status, Trace, Usage
from forkyard.trace.store import TraceStore

CASES = json.loads((Path(__file__).parents[1] / "cases/tables/passk.json").read_text())


def line(task: str, sample: int = 0, reward: Any = None, **fields: Any) -> dict[str, Any]:
    return {"run": "r", "task": task, "sample": sample, "model": "m", "reward": reward, **fields}


def scored(task: str, sample: int, reward: Any, **fields: Any) -> dict[str, Any]:
    return line(task, sample, reward, harness="bash", status="SCORED", **fields)


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def of(tmp_path: Path, *records: Any) -> Report:
    return report([write(tmp_path / "traces.jsonl", *records)])


def test_the_guides_example_prints_the_guides_numbers(tmp_path: Path) -> None:
    extra = {"steps": 4, "usage": {"input": 1000, "output": 50}, "fork_ms": 950, "agent_ms": 25000, "messages": []}
    rewards = {"sales-report": 2 / 2, "duration": 14 / 14, "calc": 12 / 13}
    lines = [line(task, sample, reward, **extra) for task, reward in rewards.items() for sample in (1, 0)]
    assert to_text(of(tmp_path, *lines)) == (
        "task          rollouts  scored  solved  pass@1  pass@2  mean_reward  errors\n"
        "calc          2         2       0       0       0       0.92         0\n"
        "duration      2         2       2       1       1       1            0\n"
        "sales-report  2         2       2       1       1       1            0\n"
        "overall       6         6       4       0.67    0.67    0.97         0\n"
        "95% intervals: pass@1 0.21 to 0.94 (Wilson, effective sample size), pass@2 0 to 1 (task bootstrap), "
        "mean_reward 0.86 to 1 (t over tasks)\n"
        "\n"
        "total: 6 rollouts; tokens 6,000 in, 300 out; median fork_ms 950, agent_ms 25,000"
    )


@pytest.mark.parametrize("case", [case for case in CASES if case["k"] <= 2], ids=lambda case: str(case["name"]))
def test_the_columns_follow_the_table_of_cases(case: dict[str, Any], tmp_path: Path) -> None:
    lines = [
        line(task, sample, reward, harness="bash", status="SCORED" if reward is not None else "INDETERMINATE")
        for task, rewards in case["tasks"].items()
        for sample, reward in enumerate(rewards)
    ]
    (group,) = of(tmp_path, *lines).groups
    for row in group.rows:
        expected = case["expect"][row.task]
        value = row.pass_at_1 if case["k"] == 1 else row.pass_at_2
        assert value == (None if expected is None else pytest.approx(expected))
        assert row.scored == case["expect"].get("scored_per_task", {row.task: row.scored})[row.task]
    assert group.overall.errors == case["expect"].get("unscored", 0)


def test_unscored_rollouts_are_counted_and_both_readings_are_given(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        *(scored("a", sample, reward) for sample, reward in enumerate([1, 1, 0, 0])),
        scored("b", 0, 1),
        *(line("b", sample, harness="bash", status="INFRASTRUCTURE_ERROR") for sample in (1, 2)),
        line("b", 3, 1, harness="bash", status="SCORING_ERROR"),
    )
    (group,) = found.groups
    assert (group.overall.rollouts, group.overall.scored, group.overall.errors) == (8, 5, 3)
    assert (group.overall.pass_at_1, group.overall.mean_reward) == (0.75, 0.75)
    assert group.overall.pass_at_2 == pytest.approx(5 / 6)
    assert group.strict and (group.strict.pass_at_1, group.strict.mean_reward) == (0.375, 0.375)
    text = to_text(found)
    assert "b        4         1       1       1       -       1            3\n" in text
    assert "3 of 8 rollouts not scored: INFRASTRUCTURE_ERROR 2, SCORING_ERROR 1\n" in text
    assert "pass@2 needs 2 scored rollouts: undefined (-) and left out of the overall row for b\n" in text
    assert "counted as a failure, overall: pass@1 0.38, pass@2 0.67, mean_reward 0.38\n" in text


def test_a_missing_reward_is_no_zero(tmp_path: Path) -> None:
    (group,) = of(tmp_path, scored("a", 0, 1.0), line("a", 1, harness="bash", status="INDETERMINATE")).groups
    assert (group.overall.mean_reward, group.overall.scored, group.overall.errors) == (1.0, 1, 1)


def test_a_scored_rollout_without_primary_reward_is_an_attempt_without_success(tmp_path: Path) -> None:
    found = of(tmp_path, scored("a", 0, 1), scored("a", 1, None))
    (row,) = found.groups[0].rows
    assert (row.scored, row.solved, row.pass_at_1, row.mean_reward, row.errors) == (2, 1, 0.5, 1.0, 0)
    assert found.groups[0].strict and found.groups[0].strict.mean_reward == 0.5
    assert "1 scored rollout without a primary reward" in to_text(found)


def test_lines_of_any_age_and_damage_show_as_rows(tmp_path: Path) -> None:
    odd = ["NaN", "A", [1], {"x": 1}, True, 10**400, 1e300, None]
    found = of(
        tmp_path,
        *(scored("odd", sample, reward) for sample, reward in enumerate(odd)),
        scored("whole", 0, 1, usage=[1], fork_ms="x", cost_usd={"x": 1}, agent_ms=None),
        {},
        {"task": ["x"], "harness": 5, "model": {}, "sample": "a", "status": 7, "reward": 1},
        {"task": "old", "reward": 1},
        {"task": "old", "reward": 0},
        line("new", 0, 1, status="WEIRD\x1b[2J"),
    )
    rows = {row.task: row for group in found.groups for row in group.rows}
    assert rows["whole"].solved == 1
    assert (rows["odd"].scored, rows["odd"].solved, rows["odd"].mean_reward) == (8, 0, None)
    assert (rows["old"].rollouts, rows["old"].solved, rows["old"].pass_at_2) == (2, 1, 1.0)
    assert rows["new"].errors == rows['["x"]'].errors == rows["(no task)"].errors == 1
    text = to_text(found)
    assert "7 scored rollouts with a damaged reward" in text and "WEIRD\\x1b[2J 1" in text
    assert json.loads(to_json(found))["totals"]["lines"] == 14


def test_an_overflowing_number_in_the_file_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"task": "a", "sample": 0, "status": "SCORED", "reward": 1e999, "agent_ms": -1e999}\n')
    assert "damaged reward" in to_text(report([path]))


def test_names_cannot_reach_the_terminal_nor_break_the_table(tmp_path: Path) -> None:
    names = ["\x1b]0;x\x07\x1b[2J", "two\nlines\tand\r", "\u202edrow", "界" * 80, "x" * 5000]
    found = of(tmp_path, *(line(name, 0, 1, harness=name, status="SCORED", run=name) for name in names))
    text = to_text(found)
    assert all(char.isprintable() or char == "\n" for char in text)
    tables = [block.split("\n") for block in text.split("\n\n")[:-1]]
    assert len(tables) == len(names)
    assert all(block[0].startswith("harness ") and len(block[1]) < 140 for block in tables)


def test_wide_letters_keep_the_columns_aligned(tmp_path: Path) -> None:
    rows = to_text(of(tmp_path, scored("世界", 0, 1), scored("plain", 0, 1))).split("\n")
    assert rows[1].index("1") == rows[2].index("1") + 2  # two letters of two cells each


def test_each_harness_and_model_has_its_own_block(tmp_path: Path) -> None:
    found = of(
        tmp_path, scored("a", 0, 1), line("a", 0, 0, harness="oracle", model=None, status="SCORED"), line("a", 0, 0.5)
    )
    assert [(group.harness, group.model) for group in found.groups] == [(None, "m"), ("bash", "m"), ("oracle", None)]
    blocks = to_text(found).split("\n\n")
    assert [block.split("\n")[0] for block in blocks[:3]] == [
        "harness -, model m", "harness bash, model m", "harness oracle, model -",
    ]  # fmt: skip


def test_several_runs_add_up_and_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    first = write(tmp_path / "one" / "traces.jsonl", scored("a", 0, 1))
    second = write(tmp_path / "two.jsonl", {**scored("a", 0, 0), "run": "s"})
    unnamed = [write(tmp_path / f"{name}.jsonl", {"task": "a", "sample": 0, "reward": 1}) for name in "xy"]
    (group,) = report([first.parent, second, first]).groups
    assert (group.overall.rollouts, group.overall.solved, group.overall.pass_at_2) == (2, 1, 1.0)
    assert report(unnamed).groups[0].overall.rollouts == 2


def test_a_rollout_run_again_counts_once_but_its_tokens_count(tmp_path: Path) -> None:
    usage = {"input": 10, "output": 1}
    lost = line("a", 0, harness="bash", status="INFRASTRUCTURE_ERROR", usage=usage, cost_usd=0.5, agent_ms=10)
    found = of(tmp_path, lost, scored("a", 0, 1, usage=usage, attempt=1, cost_usd=0.25, agent_ms=30))
    assert (found.groups[0].overall.rollouts, found.groups[0].overall.errors) == (1, 0)
    assert (found.totals.lines, found.totals.input_tokens, found.totals.cost_usd) == (2, 20, 0.75)
    text = to_text(found)
    assert "total: 1 rollout; tokens 20 in, 2 out; cost $0.7500; median agent_ms 20\n" in text
    assert "1 line replaced by a later line of the same run, task and sample" in text


def test_an_unfinished_last_line_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "traces.jsonl", scored("a", 0, 1))
    path.write_bytes(path.read_bytes() + b'{"ta')
    assert "traces.jsonl ends in an unfinished line of 4 bytes, not counted" in to_text(report([path]))


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        report([tmp_path / "none", tmp_path])
    assert caught.value.problems == (
        f"{tmp_path / 'none'} does not exist: name a run's directory or a file of lines",
        f"{tmp_path} is no run: it holds no traces.jsonl",
    )
    with pytest.raises(ConfigError, match="nothing to report on"):
        report([])


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    found = of(tmp_path)
    assert to_text(found) == "no rollouts yet" and json.loads(to_json(found))["groups"] == []


def test_one_task_is_labelled(tmp_path: Path) -> None:
    text = to_text(of(tmp_path, *(scored("a", sample, sample % 2) for sample in range(4))))
    assert text.count("95% intervals: pass@1 0.15 to 0.85 (Wilson, this task only)\n") == 1


def test_traces_written_by_the_store_are_reported(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "traces.jsonl") as store:
        for sample, score in enumerate((1.0, 0.25)):
            trace = Trace(task="a", slot=Slot(run="r", sample=sample), harness="bash", model="m")
            trace.rewards["reward"] = Reward(score)
            trace.usage = Usage(input=3, output=4)
            trace.timing.grade_ms = 4.5
            trace.settle(Status.SCORED)
            store.append(trace.to_record())
    found = report([tmp_path])
    (row,) = found.groups[0].rows
    assert (row.scored, row.solved, row.mean_reward, found.totals.grade_ms) == (2, 1, 0.625, 4.5)
    values = json.loads(to_json(found))
    assert values["groups"][0]["tasks"] == [
        {"task": "a", "rollouts": 2, "scored": 2, "solved": 1, "pass@1": 0.5, "pass@2": 1.0, "mean_reward": 0.625,
         "errors": 0, "pass^2": 0.0, "best_of_2": 1.0}
    ]  # fmt: skip
    assert set(values) == {"schema", "files", "runs", "groups", "totals", "notes"}


def test_weighted_rewards_that_miss_one_by_rounding_are_solved(tmp_path: Path) -> None:
    rewards = [0.9999999999999999, 1.0000000000000002, 2, 0.999]
    (row,) = of(tmp_path, *(scored("a", sample, reward) for sample, reward in enumerate(rewards))).groups[0].rows
    assert row.solved == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (12 / 13, "0.92"), (1.0, "1"), (0.0, "0"), (2 / 3, "0.67"), (0.125, "0.13"), (0.5, "0.5"),
     (-0.125, "-0.13"), (-0.001, "0"), (0.996, "1"), (10.0, "10"), (3e9, "3e+09"), (2_000_000, "2000000")],
)  # fmt: skip
def test_numbers_are_rounded_as_jq_rounds_them(value: float | None, text: str) -> None:
    assert shown(value) == text


@pytest.mark.slow
def test_memory_grows_with_the_number_of_rollouts_not_with_what_they_hold(tmp_path: Path) -> None:
    lines = (scored(f"t{i // 100}", i % 100, i % 2, messages=["x" * 10_000], episode=str(i)) for i in range(5_000))
    path = tmp_path / "traces.jsonl"
    with path.open("w") as file:
        for record in lines:
            file.write(json.dumps(record) + "\n")
    tracemalloc.start()
    try:
        assert report([path]).groups[0].overall.rollouts == 5_000
        assert tracemalloc.get_traced_memory()[1] < 5_000 * 1_200
    finally:
        tracemalloc.stop()


def test_metrics_and_single_rewards_are_averaged_and_rewards_over_one_are_said(tmp_path: Path) -> None:
    rewards = {"own": {"score": 1.0, "weight": 1.0}, "style": {"score": 0.2, "weight": 0.5}}
    found = of(
        tmp_path,
        scored("t", 0, 1.1, metrics={"best": 0.5, "odd": "x"}, rewards=rewards),
        scored("t", 1, 0.0, metrics={"best": 0.0}),
    )
    (group,) = found.groups
    assert group.metrics == {"best": 0.25} and group.rewards == {"own": 1.0, "style": 0.2}
    assert "metrics: best 0.25" in to_text(found)
    assert "rewards reach 1.1: solved means a reward of at least 1" in group.notes
    assert json.loads(to_json(found))["groups"][0]["rewards"] == {"own": 1.0, "style": 0.2}
