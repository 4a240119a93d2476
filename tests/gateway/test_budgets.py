"""Limits and budgets: refused before a call leaves, settled after it, kept by calls at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forkyard.errors import ConfigError, StoppedError
from forkyard.gateway import Budget
from forkyard.gateway.route import REFUSALS_KEPT
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.trace import AgentLimits, Status
from tests.gateway.parts import TALK, stage
from tests.gateway.upstream import Play, Seen, chat_body, chat_chunks, events, whole

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": TALK, "max_tokens": 5},
}


@pytest.mark.parametrize("path", sorted(DIALECTS))
async def test_a_refusal_is_a_clean_error_of_the_dialect(path: str) -> None:
    async with stage(whole(chat_body()), budget=Budget(calls=1)) as at:
        body = {"model": "m", **DIALECTS[path]}
        await at.client.post(path, json=body)
        reply = await at.client.post(path, json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and reply.headers["x-should-retry"] == "false"
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("rollout stopped: budget of 1 calls for this rollout: 1 are spent")
    assert len(at.provider.seen) == 1 and len(at.trace.calls) == 1
    assert (at.route.refused, at.trace.stop_condition, at.trace.status) == ("budget", "budget", Status.BUDGET)


async def test_a_refusal_reaches_a_harness_in_this_process_as_stopped() -> None:
    async with stage(whole(chat_body()), limits=AgentLimits(max_turns=1)) as at:
        model = at.route.model()
        await model.complete(TALK)
        with pytest.raises(StoppedError, match="rollout stopped: max_turns") as caught:
            await model.complete(TALK)
    assert caught.value.condition == at.route.refused == at.trace.stop_condition == "max_turns"
    assert at.trace.status is None  # a limit is an end of the agent's, and no money ran out


@pytest.mark.parametrize(
    "limits", [{"max_input_tokens": 100}, {"max_output_tokens": 1}, {"max_total_tokens": 3}, {"max_turns": 1}]
)
async def test_limits_of_tokens_are_soft_by_one_turn(limits: dict[str, int]) -> None:
    async with stage(whole(chat_body()), limits=AgentLimits(**limits)) as at:
        assert (await at.chat()).status_code == 200
        reply = await at.chat()
    assert reply.json()["error"]["message"] == f"rollout stopped: {next(iter(limits))}"
    assert len(at.trace.calls) == 1


async def test_calls_at_once_do_not_pass_the_limit_of_turns() -> None:
    async with stage(whole(chat_body()), limits=AgentLimits(max_turns=3)) as at:
        replies = await asyncio.gather(*(at.chat() for _ in range(10)))
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [400] * 7
    assert at.trace.steps == 3


async def test_a_failed_call_gives_its_turn_back() -> None:
    async with stage(whole({}, 500), whole(chat_body()), limits=AgentLimits(max_turns=1)) as at:
        replies = await asyncio.gather(at.chat(), at.chat())
    assert sorted(reply.status_code for reply in replies) == [200, 500]


async def test_money_is_settled_by_what_the_provider_reports() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}
    async with stage(whole(chat_body(usage=usage)), model="priced", budget=Budget(usd=1.0)) as at:
        await at.chat()
    # 600 at 1.0, 400 cached at 0.5, 100 at 2.0 per million
    assert at.call.cost_usd == pytest.approx(0.001)
    assert at.trace.cost_usd == at.gateway.spent_usd == at.call.cost_usd


async def test_calls_at_once_never_pass_a_budget_together() -> None:
    seen: list[int] = []

    def answer(request: Seen) -> Play:
        bound = request.json["max_tokens"]
        seen.append(bound)
        return whole(chat_body(usage={"prompt_tokens": 20, "completion_tokens": bound}))

    async with stage(answer=answer, budget=Budget(tokens=1000)) as at:
        replies = await asyncio.gather(*(at.chat(max_tokens=100) for _ in range(40)))
    done = sum(reply.status_code == 200 for reply in replies)
    assert at.trace.usage.total <= 1000
    assert done == len(at.provider.seen) == at.trace.usage.total // 120 >= 6
    assert at.provider.most < 8  # more would not have fitted if each had taken what it may


async def test_rollouts_of_a_run_never_pass_its_budget_together() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 100}
    async with stage(whole(chat_body(usage=usage)), model="priced", run=Budget(usd=0.005)) as at:
        models = [at.gateway.open(at.trace, "priced").model() for _ in range(8)]
        from forkyard.model import Sampling

        asked = [model.complete(TALK, sampling=Sampling(max_tokens=100)) for model in models for _ in range(8)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for model in models:
            await model.close()
    refused = [outcome for outcome in outcomes if isinstance(outcome, StoppedError)]
    assert 0 < len(refused) < 64 and len(refused) + len(at.trace.calls) == 64
    assert at.gateway.spent_usd <= 0.005
    assert at.gateway.spent_usd == pytest.approx(sum(call.cost_usd or 0 for call in at.trace.calls))
    assert "budget of 0.005 USD for the run" in str(at.gateway.exhausted)


async def test_a_reply_without_a_bound_is_given_one_that_fits() -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 5}
    async with stage(whole(chat_body(usage=usage)), budget=Budget(tokens=500)) as at:
        await at.chat()
    bound = at.provider.seen[0].json["max_completion_tokens"]
    assert 300 < bound < 500
    assert at.call.request["max_completion_tokens"] == bound


async def test_a_conversation_that_goes_on_is_counted_by_what_is_new() -> None:
    usage = {"prompt_tokens": 2000, "completion_tokens": 5}
    long = [{"role": "user", "content": "word " * 1500}]
    more = [*long, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
    async with stage(whole(chat_body(usage=usage)), budget=Budget(tokens=9_000)) as at:
        assert (await at.chat(messages=long, max_tokens=100)).status_code == 200
        # 2,005 are spent. The whole prompt at a token a byte would no longer fit; what is new does.
        assert (await at.chat(messages=more, max_tokens=100)).status_code == 200


async def test_a_stream_cut_by_its_client_counts_as_all_that_was_set_aside() -> None:
    async with stage(events(*chat_chunks({"content": "a"}), hold_at=2), budget=Budget(tokens=400)) as at:
        request = {"model": "m", "messages": TALK, "stream": True, "max_tokens": 100}
        async with at.client.stream("POST", "/v1/chat/completions", json=request) as reply:
            await anext(reply.aiter_raw())
        await at.provider.cut.wait()
        await at.ended.acquire()
        assert at.route.admission.spent.tokens > 100
    assert at.trace.usage.total == 0  # the record holds what was reported and no guess


@pytest.mark.parametrize("where", ["rollout", "run"])
async def test_a_budget_in_money_without_a_price_is_refused_before_anything_starts(where: str) -> None:
    budget = Budget(usd=1.0)
    async with stage(run=budget if where == "run" else Budget(), model=None) as at:
        own = budget if where == "rollout" else Budget()
        assert len(at.gateway.problems("nameless", budget=own)) == 1
        with pytest.raises(ConfigError, match=r"price of model 'nameless'.*\[\[price\]\].*--prices"):
            at.gateway.open(at.trace, "nameless", budget=own)
        assert at.gateway.problems("priced", budget=own) == []


async def test_an_unknown_price_costs_nothing_that_is_known() -> None:
    async with stage(whole(chat_body())) as at:
        await at.chat()
    assert at.call.cost_usd is None and at.trace.cost_usd is None


async def test_a_judge_has_a_budget_of_its_own_and_no_say_in_the_agents_stop() -> None:
    async with stage(whole(chat_body()), purpose="judge", budget=Budget(calls=1)) as at:
        await at.chat()
        reply = await at.chat()
    assert "for this judge" in reply.json()["error"]["message"]
    assert (at.trace.stop_condition, at.trace.steps, at.trace.usage.total) == (None, 0, 0)
    assert at.trace.status is Status.BUDGET and at.trace.graph.nodes == []
    answered, refused = at.trace.calls
    assert answered.purpose == refused.purpose == "judge" and answered.error is None
    assert (refused.refused, refused.fault) == ("rollout_stopped", "run") and "budget of 1 calls" in str(refused.error)


async def test_several_replies_to_one_prompt_are_all_set_aside() -> None:
    async with stage(whole(chat_body()), budget=Budget(tokens=1000)) as at:
        reply: Any = await at.chat(n=8, max_tokens=200)
    assert reply.status_code == 400 and at.provider.seen == []


@pytest.mark.parametrize(
    ("body", "refused", "fault"),
    [
        ({"model": "of-no-price"}, "no_price", "run"),
        ({"model": "of-nobody"}, "no_upstream", "run"),
        ({"messages": TALK, "model": ""}, "model_not_found", None),
    ],
    ids=["no price", "no upstream", "no model"],
)
async def test_what_a_judge_is_refused_is_on_the_record_once_with_whose_fault_it_is(
    body: dict[str, Any], refused: str, fault: str | None
) -> None:
    bound, only = Budget(usd=1.0), {"model": "of-no-*"}
    async with stage(whole(chat_body()), model=None, purpose="judge", budget=bound, upstream=only) as at:
        for _ in range(3):
            assert (await at.chat(**body)).status_code == 400
    assert at.provider.seen == []
    assert (at.call.refused, at.call.fault, at.call.purpose) == (refused, fault, "judge")
    assert at.call.error and at.trace.status is None and at.trace.cost_usd is None


async def test_what_a_judge_is_refused_fills_no_record() -> None:
    async with stage(whole(chat_body()), model=None, purpose="judge", budget=Budget(usd=1.0)) as at:
        for number in range(2 * REFUSALS_KEPT):
            await at.chat(model=f"of-no-price-{number}" + "x" * 10_000)
    assert len(at.trace.calls) == REFUSALS_KEPT
    assert max(len(call.model) + len(str(call.error)) for call in at.trace.calls) < 3_000


async def test_what_a_judge_is_refused_is_on_the_record_for_each_address(local: LocalProvider) -> None:
    async with stage(whole(chat_body()), model=None, purpose="judge", budget=Budget(usd=1.0)) as at:
        box = await local.create(SandboxSpec())
        try:
            for _ in range(2):
                assert (await at.route.listen(box, "fy-key")).key == "fy-key"
                for _ in range(3):
                    await at.chat(model="of-no-price")
        finally:
            await box.close()
    assert [call.refused for call in at.trace.calls] == ["no_price", "no_price"]
