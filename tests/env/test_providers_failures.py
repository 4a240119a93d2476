"""A provider that fails ("3.4"): the rollout fails with it only when its harness does."""

from __future__ import annotations

import pytest

import forkyard as vf
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import answering, play, seat
from tests.model.provider import error


class Asks(vf.Harness):
    """Asks its model once by HTTP of its own, and gives up when that fails, or makes do without."""

    name = "asks"

    def __init__(self, *, makes_do: bool) -> None:
        self.makes_do = makes_do

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        assert ctx.model is not None
        try:
            await ctx.model.complete([{"role": "user", "content": "?"}])
        except vf.ModelError:
            if not self.makes_do:
                raise


class Right(vf.Task):
    @vf.reward
    async def right(self) -> float:
        return 1.0


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("makes_do", [True, False])
async def test_3_4_a_failed_call_fails_the_rollout_when_its_harness_dies_of_it(
    local: LocalProvider, status: int, makes_do: bool
) -> None:
    async with answering(error(status, "no such thing")) as (gateway, _):
        task = Right(vf.TaskData(name="a", prompt="?"))
        config = seat(local, Asks(makes_do=makes_do), gateway=gateway)
        (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
    (call,) = trace.calls
    assert f"answered {status}" in str(call.error) and call.status_code == status
    assert trace.num_turns == 0 and not any(node.sampled for node in trace.graph.nodes)
    if makes_do:
        assert (trace.ok, trace.stop_condition, trace.reward) == (True, "agent_completed", 1.0)
    else:
        assert (trace.ok, trace.stop_condition, trace.reward) == (False, "provider_error", None)
        assert (trace.errors[0]["type"], trace.status) == ("provider", vf.Status.INFRASTRUCTURE_ERROR)
        assert trace.errors[0]["status_code"] == status
