"""Several rollouts of one task, and which was the best."""

from __future__ import annotations

from typing import Any

import pytest

import forkyard as vf
from forkyard.env.best_of_n import BestOfNConfig, BestOfNEnv
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import Commands, play, seat


class Number(vf.Task):
    """The reward is what the agent wrote."""

    @vf.reward
    async def written(self, runtime: vf.Sandbox) -> float:
        return float(await runtime.read("/answer"))


class InTurn(Commands):
    """Each rollout writes the next of the answers; one that is None fails."""

    def __init__(self, *answers: str | None) -> None:
        super().__init__()
        self.left = list(answers)

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        answer = self.left.pop(0)
        if answer is None:
            raise RuntimeError("this rollout fails")
        await runtime.write("/answer", answer.encode())


async def rollouts(local: LocalProvider, *answers: str | None, **config: Any) -> list[vf.Trace]:
    env = BestOfNEnv(BestOfNConfig(n=len(answers), **config))
    task = Number(vf.TaskData(name="number", prompt="?"))
    return (await play(env, task, {"agent": seat(local, InTurn(*answers))})).traces


@pytest.mark.parametrize(
    ("answers", "best", "passed"),
    [
        ((None, "0.2", "unreadable"), [None, 1.0, None], 0.0),
        ((None, None), [None, None], None),
        (("0.2", "1.0", "0.5"), [0.0, 1.0, 0.0], 1.0),
        (("-1", None), [1.0, None], 0.0),
    ],
)
async def test_a_rollout_without_a_reward_is_never_the_best(
    local: LocalProvider, answers: tuple[str | None, ...], best: list[float | None], passed: float | None
) -> None:
    traces = await rollouts(local, *answers)
    assert [trace.metrics["best"] for trace in traces] == best
    assert {trace.metrics["pass_at_n"] for trace in traces} == {passed}


async def test_of_those_that_share_the_highest_reward_the_first_is_the_best_and_all_are_marked(
    local: LocalProvider,
) -> None:
    traces = await rollouts(local, "0.2", "0.2", "0.1", threshold=0.2)
    assert [trace.metrics["best"] for trace in traces] == [1.0, 0.0, 0.0]
    assert [trace.metrics.get("tied") for trace in traces] == [1.0, 1.0, None]
    assert traces[0].metrics["pass_at_n"] == 1.0


async def test_rollouts_share_their_slot_and_run_at_once_as_far_as_they_may(local: LocalProvider) -> None:
    traces = await rollouts(local, *["1"] * 6, max_concurrent_agents=None)
    assert len({trace.id for trace in traces}) == 6
    assert len({trace.slot for trace in traces}) == 1
