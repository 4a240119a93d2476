"""What a run has spent, and going on with it when there is more money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkyard.env import Episode
from forkyard.run import resume, start
from forkyard.run.directory import RunDirectory
from forkyard.run.prepare import resolved
from forkyard.run.schedule import keep_costs
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import Status, Trace
from forkyard.trace.store import TraceStore
from tests.model.provider import KEY, message, playing, reply
from tests.run.parts import Heard, lines, plan_of, write_task

PRICES = '[[price]]\nmodel = "fake*"\ninput = 1000.0\noutput = 1000.0\n'
TRIES = {"earlier_attempts": [{"of": "agent", "reason": "lost", "usage": {"input": 7}, "cost_usd": 5.0}]}


@pytest.fixture
def money(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a plan needs to count money, over a task that is never done."""
    write_task(tmp_path / "tasks", "a")
    (tmp_path / "prices.toml").write_text(PRICES)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    counted = {"prices": tmp_path / "prices.toml", "sampling": {"max_tokens": 5}, "concurrent": 1}
    return {"harness": "bash", "model": "fake", **counted}


def test_a_run_has_spent_what_failed_tries_cost(tmp_path: Path) -> None:
    with RunDirectory.create(plan_of(tmp_path)) as directory:
        with TraceStore(directory.traces) as store:
            store.append({"task": "a", "sample": 0, "cost_usd": 1.0, "info": TRIES})
        with TraceStore(directory.superseded) as store:
            store.append({"task": "a", "sample": 0, "cost_usd": 0.5, "info": {"earlier_attempts": [{"cost_usd": 2}]}})
        assert directory.spent() == 8.5


def test_an_attempt_that_is_not_written_leaves_the_cost_of_its_tries_too() -> None:
    lost = Trace(cost_usd=1.0, info=dict(TRIES), status=Status.INFRASTRUCTURE_ERROR, reason="gone")
    kept = Episode("e", "single-agent", "a", [Trace(info=dict(TRIES))])
    keep_costs(kept, [Episode("d", "single-agent", "a", [lost, Trace(cost_usd=0.5)])])
    used = {"input": 7, "output": 0, "cached": 0, "reasoning": 0}
    told = {"of": "episode", "reason": "gone", "usage": used, "cost_usd": 6.5}
    assert kept.traces[0].info["earlier_attempts"] == [told, *TRIES["earlier_attempts"]]


async def test_what_a_smaller_budget_cut_short_is_played_again_with_more(
    tmp_path: Path, home: Path, money: dict[str, Any]
) -> None:
    run = tmp_path / "runs/r"
    async with playing({**reply(message(None, ["true"]), "tool_calls"), "repeat": True}) as model:
        await start(
            plan_of(tmp_path, base_url=model.url, budget_usd=0.5, **money), Heard(), provider=LocalProvider(home)
        )
        (first,) = lines(run)
        assert first["status"] == "BUDGET"
        assert first["info"]["over_budget"] == {"whose": "run", "usd": 0.5, "tokens": None, "calls": None}
        for same in (None, 0.5, first["cost_usd"] / 2):
            done = await resume(run, Heard(), provider=LocalProvider(home), budget_usd=same)
            assert done.played == 0 and lines(run) == [first]
        heard = Heard()
        more = await resume(run, heard, provider=LocalProvider(home), budget_usd=0.9)
        assert more.played == 1 and any("1 BUDGET to be played again" in note for note in heard.notes)
        (second,) = lines(run)
        assert second["attempt"] == 1 and lines(run, "superseded.jsonl") == [first]
        assert first["cost_usd"] + second["cost_usd"] <= 0.9
        assert (await resume(run, Heard(), provider=LocalProvider(home), budget_usd=0.9)).played == 0


async def test_a_rollout_that_spent_its_own_budget_is_done_whatever_the_run_has(
    tmp_path: Path, home: Path, money: dict[str, Any]
) -> None:
    async with playing({**reply(message(None, ["true"]), "tool_calls"), "repeat": True}) as model:
        config = {"agent": {"budget": {"usd": 0.2}}}
        plan = plan_of(tmp_path, base_url=model.url, budget_usd=5.0, env_config=config, **money)
        await start(plan, Heard(), provider=LocalProvider(home))
        (line,) = lines(tmp_path / "runs/r")
        assert line["status"] == "BUDGET"
        assert line["info"]["over_budget"] == {"whose": "rollout", "usd": 0.2, "tokens": None, "calls": None}
        again = await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home), budget_usd=9.0)
        assert again.played == 0 and lines(tmp_path / "runs/r") == [line]


def test_a_plan_names_the_endpoint_it_was_begun_with_if_a_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    asking = plan_of(tmp_path, harness="bash", model="m")
    assert resolved(asking).base_url == "http://127.0.0.1:9/v1"
    assert resolved(plan_of(tmp_path, harness="bash", model="m", base_url="http://a.test")).base_url == "http://a.test"
    own = {"agent": {"model": "m", "harness": {"id": "bash"}}}
    assert resolved(plan_of(tmp_path, env_config=own)).base_url == "http://127.0.0.1:9/v1"
    assert resolved(plan_of(tmp_path)).base_url is None
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert resolved(asking).base_url is None
