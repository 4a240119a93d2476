"""A rollout's way to its model: who is on the record, what ends an agent, and what is left when grading begins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import forkyard as vf
from forkyard.gateway import Budget, Price, Prices
from forkyard.harness import BashHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.task.judges import ReferenceJudge, ReferenceJudgeConfig
from tests.env.parts import answering, play, roles, seat
from tests.model.provider import error, message, reply

ASK = """
import json, sys, urllib.request
body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": sys.argv[2]}]}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"])
"""


class Inside(vf.Harness):
    """A program in the sandbox that asks the model over HTTP; `linger` leaves one there that goes on asking."""

    needs_endpoint = True

    def __init__(self, linger: bool = False, asks: int = 1) -> None:
        self.linger, self.asks = linger, asks

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        assert ctx.endpoint is not None
        await runtime.write("/ask.py", ASK.encode())
        command = ["python3", "/ask.py", ctx.endpoint.base_url]
        for number in range(self.asks):
            result = await runtime.run([*command, f"question {number}"])
            if not result.ok:
                raise vf.HarnessError(result.stderr[-300:])
        if self.linger:
            loop = "while :; do " + " ".join(command) + " again >/tmp/said 2>&1 && touch /tmp/heard; done"
            await runtime.run(["sh", "-c", f"setsid sh -c '{loop}' >/dev/null 2>&1 &"])
            await runtime.run("until [ -e /tmp/heard ]; do sleep 0.02; done")


class Quiet(vf.Task):
    """Whether a process that the agent left can still reach the model while it is graded."""

    @vf.reward
    async def heard(self, runtime: vf.Sandbox, trace: vf.Trace) -> float:
        look = "pgrep -c -f ask.py; rm -f /tmp/heard; n=0; while [ $n -lt 4 ]; do : > /tmp/said; "
        look += "until [ -s /tmp/said ]; do sleep 0.02; done; n=$((n+1)); done; ls /tmp/heard"
        result = await runtime.run(["sh", "-c", look], timeout=30)
        trace.info["look"] = result.stdout + result.stderr
        return float(result.ok)


TASK = vf.Task(vf.TaskData(name="task", prompt="Do it."))


async def one(local: LocalProvider, harness: vf.Harness, gateway: Any, task: vf.Task = TASK, **fields: Any) -> vf.Trace:
    config = seat(local, harness, gateway=gateway, **fields)
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
    return trace


async def test_a_program_in_the_sandbox_is_on_the_record_by_what_it_asked(local: LocalProvider) -> None:
    async with answering(reply("an answer")) as (gateway, _):
        trace = await one(local, Inside(), gateway)
    assert trace.ok, trace.reason
    assert roles(trace.messages) == ["user", "assistant"]
    assert (trace.last_reply, trace.steps, trace.usage.input) == ("an answer", 1, 10)


async def test_what_an_agent_left_running_reaches_no_model_while_it_is_graded(local: LocalProvider) -> None:
    async with answering({**reply("again"), "repeat": True}) as (gateway, upstream):
        trace = await one(
            local, Inside(linger=True), gateway, Quiet(vf.TaskData(name="q", prompt="?")), verifier="shared"
        )
        asked = len(upstream.asked)
    assert asked >= 2 and len(trace.calls) == asked
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 0.0), trace.info
    assert int(trace.info["look"].split("\n")[0]) >= 1  # it is still there and goes on trying


async def test_a_program_that_gives_up_when_it_is_refused_has_ended_well(local: LocalProvider) -> None:
    async with answering({**reply("yes"), "repeat": True}) as (gateway, _):
        trace = await one(local, Inside(asks=5), gateway, limits=vf.AgentLimits(max_turns=2))
    assert (trace.ok, trace.stop_condition, trace.steps) == (True, "max_turns", 2)


async def test_a_budget_ends_the_agent_and_says_so(local: LocalProvider) -> None:
    calls = [{**reply(message("", ["true"]), "tool_calls"), "repeat": True}]
    async with answering(*calls) as (gateway, _):
        trace = await one(local, BashHarness(), gateway, budget=Budget(calls=2))
    assert (trace.status, trace.ok, len(trace.calls)) == (vf.Status.BUDGET, True, 2)
    assert "budget" in str(trace.reason)


@pytest.mark.parametrize(("fails_at", "status"), [(0, vf.Status.INFRASTRUCTURE_ERROR), (1, vf.Status.INDETERMINATE)])
async def test_who_answers_for_a_program_whose_model_fails(
    local: LocalProvider, fails_at: int, status: vf.Status
) -> None:
    replies = [reply("fine")] * fails_at + [error(400, "no such parameter")]
    async with answering(*replies) as (gateway, _):
        trace = await one(local, Inside(asks=3), gateway)
    assert trace.status is status
    assert trace.errors[0]["type"] == ("harness" if fails_at else "provider")


async def test_a_slow_model_under_an_agent_that_has_worked_is_the_agents_deadline(local: LocalProvider) -> None:
    async with answering(reply(message("", ["true"]), "tool_calls"), {"hang": True}) as (gateway, _):
        trace = await one(local, BashHarness(), gateway, timeout=vf.TaskTimeout(agent=3.0))
    assert (trace.stop_condition, trace.ok, trace.is_timeout) == ("agent_timeout", True, True)


class Judged(vf.Task):
    """Its reward asks a model, the agent's unless it says so."""

    judges_model: str | None = None

    @vf.reward
    async def agrees(self, trace: vf.Trace) -> float:
        judge = ReferenceJudge(ReferenceJudgeConfig(model=self.judges_model))
        judged = await judge.evaluate(trace=trace, question="?", answer="4", response=trace.last_reply)
        return float(judged.parsed or 0.0)


async def test_a_judge_asks_by_a_route_of_its_own(local: LocalProvider) -> None:
    async with answering(reply("four"), reply("Final verdict: yes")) as (gateway, upstream):
        trace = await one(
            local,
            BashHarness(),
            gateway,
            Judged(vf.TaskData(name="j", prompt="2+2?")),
            limits=vf.AgentLimits(max_turns=1),
        )
    assert [call.purpose for call in trace.calls] == ["agent", "judge"], trace.reason
    assert (trace.steps, trace.usage.input, len(upstream.asked)) == (1, 10, 2)
    assert trace.status is vf.Status.SCORED, trace.reason


class HidesItsJudgesFailure(Judged):
    @vf.reward
    async def agrees(self, trace: vf.Trace) -> float:
        with suppress(vf.ModelError):
            return await super().agrees(trace)
        return 0.0


async def test_a_reward_that_hides_its_judges_failure_is_no_score(local: LocalProvider) -> None:
    async with answering(reply("four"), error(401, "no such key")) as (gateway, _):
        task = HidesItsJudgesFailure(vf.TaskData(name="j", prompt="2+2?"))
        trace = await one(local, BashHarness(), gateway, task, limits=vf.AgentLimits(max_turns=1))
    assert (trace.status, trace.reward) == (vf.Status.INFRASTRUCTURE_ERROR, None), trace.reason
    assert "got no answer" in str(trace.reason) and trace.verifier["code"] == "judge_unanswered"


class JudgedByAnother(Judged):
    judges_model = "judge"


@pytest.mark.parametrize(("own", "most"), [(None, "5"), (0.25, "0.25")])
async def test_judges_may_spend_what_the_agent_may_and_at_most_5_dollars(
    local: LocalProvider, own: float | None, most: str
) -> None:
    async with answering(reply("four")) as (gateway, upstream):
        gateway.prices = Prices(
            (Price(model="fake", input=0, output=10.0), Price(model="judge", input=1e6, output=1e6))
        )
        trace = await one(
            local,
            BashHarness(),
            gateway,
            JudgedByAnother(vf.TaskData(name="j", prompt="2+2?")),
            limits=vf.AgentLimits(max_turns=1),
            budget=Budget(usd=own),
        )
    assert [(call.purpose, call.refused) for call in trace.calls] == [("agent", None), ("judge", "rollout_stopped")]
    assert len(upstream.asked) == 1
    assert (trace.status, trace.reward) == (vf.Status.BUDGET, None), trace.reason
    assert f"budget of {most} USD for this judge" in str(trace.reason)
    assert trace.verifier["judge_cost_usd"] == 0.0


class Breaks(vf.Task):
    """Its own code fails when it looks at the agent's second request."""

    @vf.intercept
    async def look(self, request: vf.Request) -> vf.Request:
        if "question 1" in str(request.messages):
            raise ValueError("the look failed")
        return request


async def test_a_task_whose_code_fails_at_a_call_of_a_program_inside_is_the_tasks_fault(local: LocalProvider) -> None:
    class Shrugs(Inside):
        """Takes no notice of what its program ends with."""

        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            with suppress(vf.HarnessError):
                await super().launch(ctx, task, trace, runtime)

    for harness in (Inside(asks=2), Shrugs(asks=2)):
        async with answering({**reply("yes"), "repeat": True}) as (gateway, _):
            trace = await one(local, harness, gateway, Breaks(vf.TaskData(name="b", prompt="?")))
        assert trace.errors[0]["type"] == "task" and "the look failed" in str(trace.reason), trace.errors
        assert trace.reward is None and trace.stop_condition != "agent_completed"


async def test_the_harness_records_its_own_metrics_where_the_agent_worked(local: LocalProvider) -> None:
    class Counts(vf.Harness):
        needs_model = False

        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            await runtime.run("touch /a /b")

        async def score(self, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            trace.record_metric("left", float((await runtime.run("ls /a /b | wc -l")).stdout))
            if task_of(trace) == "raises":
                raise RuntimeError("no")

    def task_of(trace: vf.Trace) -> str:
        return trace.task

    class Fine(vf.Task):
        @vf.reward
        async def fine(self) -> float:
            return 1.0

    for name in ("counts", "raises"):
        config = seat(local, Counts())
        (trace,) = (await play(vf.SingleAgentEnv(), Fine(vf.TaskData(name=name)), {"agent": config})).traces
        assert (trace.metrics["left"], trace.status, trace.reward) == (2.0, vf.Status.SCORED, 1.0)
        assert trace.ok is (name == "counts")
