"""The routes of a rollout's judges, from when they are opened to when they are closed, however that is."""

from __future__ import annotations

import asyncio

import pytest

import forkyard as vf
from forkyard.env.judges import judging
from forkyard.errors import StoppedError
from forkyard.model import Sampling
from tests.env.test_verifier_models import priced
from tests.model.provider import reply

ASKS = ({"role": "user", "content": "Is it good?"},)


async def test_without_a_gateway_nobody_can_be_asked() -> None:
    async with judging(None, vf.Trace(), "m", None) as judges:
        assert judges is None


async def test_cancelling_the_seal_of_one_route_does_not_leave_the_other_open() -> None:
    trace = vf.Trace()
    async with priced(1000.0, reply("yes"), {"hang": True}, reply("no")) as (gateway, upstream):
        judging_it = judging(gateway, trace, None, None)
        judges = await judging_it.__aenter__()
        assert judges is not None
        await judges(ASKS, Sampling(), "judge-1")
        asking = asyncio.create_task(judges(ASKS, Sampling(), "of no price"))
        while len(upstream.asked) < 2:
            await asyncio.sleep(0)
        closing = asyncio.create_task(judging_it.__aexit__(None, None, None))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert trace.verifier["judge_cost_usd"] == pytest.approx(0.015)
        with pytest.raises(StoppedError, match="ended"):
            await asking


async def test_routes_are_sealed_when_grading_fails() -> None:
    trace = vf.Trace()
    async with priced(1000.0, reply("yes")) as (gateway, _):
        with pytest.raises(ZeroDivisionError):
            async with judging(gateway, trace, "judge-1", None) as judges:
                assert judges is not None
                await judges(ASKS, Sampling())
                raise ZeroDivisionError
    assert trace.verifier["judge_cost_usd"] == pytest.approx(0.015)
