"""Reports on runs of several agents, and on what models cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forkyard.report import report, to_json, to_text
from forkyard.run import Plan, PlannedTask
from forkyard.trace import Reward, Slot, Status, Trace
from forkyard.trace.calls import ModelCall
from tests.run.parts import agent_of


def line(agent: str, reward: float | None, *costs: tuple[str, float], **fields: Any) -> dict[str, Any]:
    """The line of one rollout, of a task and an episode called by the sample."""
    sample = fields.pop("sample", 0)
    slot = Slot("r", sample, 0, f"e{sample}", "agentic-judge")
    trace = Trace(task="t", slot=slot, agent=agent, harness=agent, model="m", **fields)
    if reward is not None:
        trace.rewards["right"] = Reward(reward)
    trace.settle(Status.SCORED if reward is not None else Status.INDETERMINATE)
    for purpose, cost in costs:
        trace.record_call(ModelCall(purpose=purpose, cost_usd=cost))
    return trace.to_record()


def run_of(tmp_path: Path, *lines: dict[str, Any], name: str = "r", **fields: Any) -> Path:
    """A run's directory with those lines."""
    run = tmp_path / name
    run.mkdir()
    plan = Plan(run="r", paths=(tmp_path,), agent=agent_of("bash"), env="agentic-judge", **fields)
    samples = len({line["sample"] for line in lines})
    plan = plan.model_copy(update={"tasks": {"t": PlannedTask(digest="d")}, "samples": samples})
    (run / "plan.json").write_text(plan.model_dump_json())
    (run / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_every_agent_has_a_table_and_a_judge_no_part_in_the_rates(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        line("solver", 1.0, ("agent", 0.5), ("judge", 0.25)),
        line("judge", None, ("agent", 2.0)),
        line("solver", 0.0, ("agent", 0.5), sample=1),
        line("judge", None, ("agent", 2.0), sample=1),
    )
    found = {group.agent: group for group in report([run]).groups}
    assert (found["solver"].overall.mean_reward, found["solver"].strict) == (0.5, None)
    assert (found["solver"].cost_usd, found["solver"].judges_usd) == (1.25, 0.25)
    assert not found["judge"].rewarded and found["judge"].notes == ()
    text = to_text(report([run]))
    assert "agent solver, harness solver, model m" in text and "agent judge, harness judge, model m" in text
    assert "cost $1.25, of it $0.2500 for judges" in text
    assert "2 rollouts that rewards are not for: INDETERMINATE 2\ncost $4.00\n" in text
    assert "cost $5.25, of it $0.2500 for judges" in text.splitlines()[-2]
    values = json.loads(to_json(report([run])))
    assert [(group["agent"], group["rewarded"], group["cost_usd"]) for group in values["groups"]] == [
        ("judge", False, 4.0),
        ("solver", True, 1.25),
    ]
    assert values["totals"]["judges_usd"] == 0.25


def test_where_nobody_earned_anything_nobody_is_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, line("solver", None), line("judge", None))
    assert all(group.rewarded and group.strict is not None for group in report([run]).groups)


def test_a_solver_without_a_reward_counts_as_a_failure_beside_one_that_has_one(tmp_path: Path) -> None:
    run = run_of(tmp_path, line("solver", 1.0), line("solver", None, sample=1), line("judge", None))
    (solver,) = (group for group in report([run]).groups if group.agent == "solver")
    assert solver.strict is not None and solver.strict.mean_reward == 0.5


def test_runs_of_other_configurations_of_agents_are_kept_apart(tmp_path: Path) -> None:
    one = run_of(tmp_path, line("solver", 1.0), name="one", env_config={"judge": {"model": "a"}})
    two = run_of(tmp_path, line("solver", 0.0), name="two", env_config={"judge": {"model": "b"}})
    three = run_of(tmp_path, line("solver", 0.0), name="three", env_config={"judge": {"model": "a"}, "retries": {}})
    assert len(report([one, two]).groups) == 2
    assert len(report([one, three]).groups) == 1
