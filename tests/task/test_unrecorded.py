"""Scoring again what reads a state that no line holds."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import Field, PrivateAttr

import forkyard as vf
from forkyard.run.replay import keep_unrecorded
from forkyard.task import UNRECORDED, unrecorded
from forkyard.task.unrecorded import UnrecordedStateError
from forkyard.trace import Reward, Status, Trace


class Notes(vf.State):
    looked: int = 0
    seen: list[str] = Field(default_factory=list)
    _count: int = PrivateAttr(3)

    def often(self) -> bool:
        return self.looked > 1


class Look(vf.Task[vf.TaskData, Notes]):
    @vf.reward
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(trace.state.looked == 1)

    @vf.reward
    async def swallows(self, trace: vf.Trace) -> float:
        try:
            return float(await asyncio.to_thread(trace.state.often))
        except vf.ForkyardError:
            return 0.0

    @vf.reward
    async def polite(self, trace: vf.Trace) -> float:
        return float("please" in trace.last_reply)

    @vf.metric
    async def tools(self, trace: vf.Trace) -> float:
        return len(trace.state.seen)


def scored_before() -> tuple[Look, Trace]:
    trace = Trace(state=unrecorded(Notes))
    trace.messages.append({"role": "assistant", "content": "please"})
    return Look(vf.TaskData(name="look", prompt="?")), trace


def test_nothing_is_read_of_it_before_it_was_set() -> None:
    state = unrecorded(Notes)
    assert isinstance(state, Notes)
    for read in (
        lambda: state.looked,
        state.often,
        lambda: state._count,
        lambda: getattr(state, "seen", None),
        lambda: state.artifacts,
    ):
        with pytest.raises(UnrecordedStateError, match="no line holds it"):
            read()
    assert not hasattr(state, "misspelt")
    state.looked, state._count = 5, 1
    assert (state.looked, state.often(), state._count) == (5, True, 1)
    state.artifacts = {"/a": None}
    assert state.artifacts == {"/a": None}


def test_a_fresh_state_of_a_rollout_is_as_ever() -> None:
    unrecorded(Notes)
    assert (Notes().looked, Notes()._count) == (0, 3)


async def test_what_reads_it_is_left_out_and_named_also_when_it_swallows_the_error() -> None:
    task, trace = scored_before()
    await task.score(trace)
    assert set(trace.rewards) == {"polite"} and trace.metrics == {}
    assert trace.verifier[UNRECORDED] == ["looked_up", "swallows", "tools"]
    assert trace.status is Status.INDETERMINATE and "no line holds" in str(trace.reason)


async def test_it_keeps_the_value_it_had() -> None:
    task, trace = scored_before()
    await task.score(trace)
    had = {"looked_up": Reward(1.0, 0.5), "swallows": Reward(0.0, 1.0), "polite": Reward(0.0, 1.0)}
    keep_unrecorded(trace, had, {"tools": 2.0, "else": 1.0})
    assert trace.status is Status.SCORED and trace.reward == 1.5
    assert trace.metrics == {"tools": 2.0}
    assert str(trace.reason).startswith("looked_up, swallows, tools kept the value of before")


async def test_without_a_value_of_before_nothing_is_made_up() -> None:
    task, trace = scored_before()
    await task.score(trace)
    keep_unrecorded(trace, {"looked_up": None}, {})
    assert (trace.status, trace.reward) == (Status.INDETERMINATE, None)
