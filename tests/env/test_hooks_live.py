"""What a task's hooks come to in whole rollouts ("6.6"): setup, finalize, rewards, stops, deadlines."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import forkyard as vf
from forkyard.harness import BashHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.values import strict_json
from tests.env.parts import Commands, answering, play, seat
from tests.model.provider import message, reply

DATA = vf.TaskData(name="hooks", prompt="?")


class Plain(vf.Task):
    @vf.reward
    async def right(self) -> float:
        return 1.0

    @vf.metric
    async def counted(self) -> float:
        return 2.0


async def one(local: LocalProvider, task: vf.Task, harness: vf.Harness | None = None, **fields: Any) -> vf.Trace:
    config = seat(local, harness or Commands("true"), **fields)
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
    return trace


async def test_6_6_a_setup_that_raises_is_a_task_error_before_any_call(local: LocalProvider) -> None:
    class Setup(Plain):
        async def setup(self) -> None:
            raise RuntimeError("setup boom")

    trace = await one(local, Setup(DATA))
    assert (trace.errors[0]["type"], trace.errors[0]["message"]) == (
        "task",
        "task Setup setup: RuntimeError: setup boom",
    )
    assert (trace.ok, trace.stop_condition, trace.calls) == (False, "task_error", [])


async def test_6_6_a_finalize_that_raises_keeps_how_the_agent_ended_and_scores_nothing(local: LocalProvider) -> None:
    class Finalize(Plain):
        async def finalize(self) -> None:
            raise RuntimeError("finalize boom")

    trace = await one(local, Finalize(DATA))
    assert (trace.ok, trace.stop_condition, trace.rewards) == (False, "agent_completed", {})
    assert trace.errors[0]["message"] == "task Finalize finalize: RuntimeError: finalize boom"


@pytest.mark.parametrize("said", ["raises", "abc", None])
async def test_6_6_a_reward_that_is_none_leaves_every_reward_null_and_the_metrics(
    local: LocalProvider, said: Any
) -> None:
    class Odd(Plain):
        @vf.reward
        async def odd(self) -> Any:
            if said == "raises":
                raise RuntimeError("reward boom")
            return said

    trace = await one(local, Odd(DATA))
    assert (trace.ok, trace.rewards["odd"], trace.reward, trace.metrics) == (False, None, None, {"counted": 2.0})
    assert trace.status is vf.Status.SCORING_ERROR and trace.stop_condition == "agent_completed"


async def test_6_6_a_number_that_is_none_is_null_on_the_line(local: LocalProvider) -> None:
    class NaN(Plain):
        @vf.reward
        async def odd(self) -> float:
            return math.nan

    trace = await one(local, NaN(DATA))
    line = json.loads(strict_json(trace.to_record()))
    assert (line["rewards"]["odd"], line["reward"], trace.status) == (None, None, vf.Status.SCORING_ERROR)


async def test_6_6_a_mapping_is_a_reward_for_each_of_its_keys(local: LocalProvider) -> None:
    class Mapping(vf.Task):
        @vf.reward(weight=0.5)
        async def several(self) -> dict[str, float]:
            return {"a": 1, "b": 0.25}

        @vf.reward
        async def needs_rt(self, runtime: vf.Runtime) -> float:
            return float((await runtime.run("true")).ok)

    trace = await one(local, Mapping(DATA))
    assert trace.rewards == {
        "a": vf.Reward(1.0, 0.5),
        "b": vf.Reward(0.25, 0.5),
        "needs_rt": vf.Reward(1.0),
    }
    assert trace.reward == 1.625


class Turns(Plain):
    @vf.stop
    def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 2


class Unsure(Plain):
    @vf.stop
    def enough(self, trace: vf.Trace) -> bool:
        raise KeyError("no idea")


async def test_6_6_a_stop_at_two_turns_ends_the_agent_after_two(local: LocalProvider) -> None:
    async with answering(*[reply(message("", ["true"]), "tool_calls")] * 5) as (gateway, upstream):
        trace = await one(local, Turns(DATA), BashHarness(), gateway=gateway)
    assert (trace.num_turns, trace.stop_condition, len(upstream.asked)) == (2, "enough", 2)
    assert (trace.ok, trace.status) == (True, vf.Status.SCORED)


async def test_6_6_a_stop_that_raises_is_a_task_error_and_no_call(local: LocalProvider) -> None:
    async with answering(reply("hi")) as (gateway, upstream):
        trace = await one(local, Unsure(DATA), BashHarness(), gateway=gateway)
    assert trace.errors[0]["type"] == "task" and upstream.asked == []
    assert trace.errors[0]["message"].startswith("model boundary hook failed: KeyError: 'no idea'")
    assert trace.ok is False


class Hangs(Plain):
    at: str = ""

    async def _maybe(self, here: str, runtime: vf.Runtime) -> None:
        if here == self.at:
            await runtime.run("sleep 1000")

    async def setup(self, runtime: vf.Runtime) -> None:
        await self._maybe("setup", runtime)

    async def finalize(self, runtime: vf.Runtime) -> None:
        await self._maybe("finalize", runtime)

    @vf.reward
    async def slow(self, runtime: vf.Runtime) -> float:
        await self._maybe("scoring", runtime)
        return 1.0


@pytest.mark.parametrize("where", ["setup", "agent", "finalize", "scoring"])
async def test_6_6_a_deadline_is_a_stop_and_no_error(local: LocalProvider, where: str) -> None:
    task = Hangs(DATA)
    task.at = where
    agent = Commands("sleep 1000" if where == "agent" else "true")
    trace = await one(local, task, agent, timeout=vf.TaskTimeout.model_validate({where: 0.3}))
    assert (trace.is_timeout, trace.errors, trace.ok) == (True, [], True)
    assert trace.stop_condition == {"scoring": "agent_completed"}.get(where, f"{where}_timeout")
    # Verification past its deadline decides nothing, and a machine that never got ready is no agent's failure.
    scored = {"setup": (vf.Status.INFRASTRUCTURE_ERROR, None), "scoring": (vf.Status.INDETERMINATE, None)}
    assert (trace.status, trace.reward) == scored.get(where, (vf.Status.SCORED, 2.0))
