"""What may be derived from a run that was derived itself, and what a replay's judges may spend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.report.same import same_rollouts
from forkyard.run import Plan, Regrade, Replay, regrade, replay, resume, start
from forkyard.run.derived import derived
from forkyard.sandbox.local import LocalProvider
from forkyard.trace.store import PLAN_FILE
from tests.model.provider import KEY, playing, reply
from tests.run.parts import Heard, lines, plan_of

TALK = """
import forkyard as vf

class Question(vf.TaskData):
    answer: str

class Talk(vf.Task):
    @vf.reward
    async def polite(self, trace: vf.Trace) -> float:
        return float("{word}" in trace.last_reply)

TASKS = [Talk(Question(name="a", prompt="Ask.", answer="yes"))]
"""
PRICE = '[[price]]\nmodel = "fake"\ninput = {usd}\noutput = {usd}\n'


def written(tmp_path: Path, run: str, **fields: Any) -> Plan:
    """The plan of a run that is there, as far as its directory and its plan go."""
    plan = plan_of(tmp_path, run=run, **fields)
    plan.place.mkdir(parents=True)
    (plan.place / PLAN_FILE).write_text(plan.model_dump_json())
    return plan


async def test_what_was_scored_again_is_graded_again_where_it_was_played(tmp_path: Path) -> None:
    first = written(tmp_path, "first").place
    second = written(tmp_path, "second", action="replay", source=first).place
    third = written(tmp_path, "third", action="replay", source=second).place
    for place, source in ((second, first), (third, second)):
        with pytest.raises(ConfigError, match=f"^{place} holds scores of {source}: grade {first} again"):
            await regrade(Regrade(source=place, out=tmp_path / "runs", run="x"), Heard())
    with pytest.raises(ConfigError, match=f"{third} holds scores of {second}, not a run of its own"):
        await resume(third, Heard())
    (first / PLAN_FILE).unlink()
    with pytest.raises(ConfigError, match=f"grade {first} again"):
        await regrade(Regrade(source=third, out=tmp_path / "runs", run="x"), Heard())


async def test_what_was_graded_again_is_replayed_and_not_graded_a_third_time(tmp_path: Path) -> None:
    first = written(tmp_path, "first").place
    second = written(tmp_path, "second", action="regrade", source=first).place
    with pytest.raises(ConfigError, match=f"^{second} was graded again from {first}: grade {first} again"):
        await regrade(Regrade(source=second, out=tmp_path / "runs", run="x"), Heard())
    before, plan = derived("replay", second, "x", tmp_path / "runs")
    assert (before.action, plan.action, plan.source) == ("regrade", "replay", second)


async def talked(tmp_path: Path, home: Path, **fields: Any) -> Path:
    (tmp_path / "tasks.py").write_text(TALK.format(word="please"))
    given = {"harness": "tests.run.envs:Says", "paths": (tmp_path / "tasks.py",), **fields}
    await start(plan_of(tmp_path, **given), Heard(), provider=LocalProvider(home))
    return tmp_path / "runs/r"


async def again(tmp_path: Path, source: Path, run: str) -> Path:
    await replay(Replay(source=source, out=tmp_path / "runs", run=run), Heard())
    return tmp_path / "runs" / run


@pytest.mark.parametrize("status", ["SCORED", "INFRASTRUCTURE_ERROR"])
async def test_the_replay_of_a_replay_is_of_the_rollouts_that_were_played(
    tmp_path: Path, home: Path, status: str
) -> None:
    first = await talked(tmp_path, home)
    second = await again(tmp_path, first, "second")
    kept = second / "traces.jsonl"
    kept.write_text(kept.read_text().replace('"status": "SCORED"', f'"status": "{status}"'))
    third = await again(tmp_path, second, "third")
    (played,), (one,), (two,) = lines(first), lines(second), lines(third)
    assert one["info"]["replay"] == {"run": "r", "id": played["id"], "scored": True}
    assert two["info"]["replay"] == {"run": "r", "id": played["id"], "scored": status == "SCORED"}
    for pair in ((first, third), (second, third)):
        same = same_rollouts(*pair)
        assert same is not None and same.rollouts == {played["id"]}


@pytest.mark.parametrize("said", ["agent", "env_config"])
async def test_judges_of_a_replay_are_bounded_by_the_agents_budget_as_they_were(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICE.format(usd=1.0))
    budget = {"usd": 0.01}
    async with playing({**reply("yes"), "repeat": True}) as model:
        source = await talked(
            tmp_path,
            home,
            taskset_config={"task": {"judges": [{"id": "reference", "model": "fake"}]}},
            base_url=model.url,
            prices=prices,
            **({"env_config": {"agent": {"budget": budget}}} if said == "env_config" else {"budget": budget}),
        )
        asked = len(model.asked)
        assert asked == 1 and lines(source)[0]["rewards"]["reference"]["score"] == 1.0
        prices.write_text(PRICE.format(usd=1_000.0))
        (line,) = lines(await again(tmp_path, source, "dear"))
        assert len(model.asked) == asked and "budget of 0.01 USD" in line["reason"]
        prices.write_text(PRICE.format(usd=1.0).replace("fake", "another"))
        with pytest.raises(ConfigError, match="needs the price of model 'fake', and none is known"):
            await again(tmp_path, source, "unpriced")
        assert len(model.asked) == asked and not (tmp_path / "runs/unpriced").exists()
