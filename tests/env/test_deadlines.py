"""What comes after the agent ends, also where a task sets no deadline and the agent left what never answers."""

from __future__ import annotations

import asyncio

import pytest

import forkyard as vf
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import Commands, play, seat

PIPE = "mkfifo /answer"


def due() -> list[float]:
    """In how many seconds something is to happen, as the event loop has it."""
    loop = asyncio.get_running_loop()
    return [each.when() - loop.time() for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]


class Looked(vf.Task):
    """Notes in each of its hooks which deadlines there are."""

    async def finalize(self, trace: vf.Trace) -> None:
        trace.info["finalize"] = due()

    async def stage_verifier(self, trace: vf.Trace) -> None:
        trace.info["stage"] = due()

    @vf.reward
    async def scored(self, trace: vf.Trace) -> float:
        trace.info["scoring"] = due()
        return 1.0


@pytest.mark.parametrize("verifier", ["forked", "shared", "separate"])
async def test_each_step_after_the_agent_has_ten_minutes_where_nobody_says(local: LocalProvider, verifier: str) -> None:
    task = Looked(vf.TaskData(name="a", prompt="?", verifier=verifier))
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": seat(local, Commands())})).traces
    assert (trace.status, trace.reward) == ("SCORED", 1.0), trace.reason
    for step in ("finalize", "stage", "scoring"):
        assert any(500 < seconds <= 600 for seconds in trace.info[step]), trace.info


class Reads(vf.Task):
    """Reads the answer by a program, which waits at a pipe for ever."""

    async def finalize(self, runtime: vf.Runtime) -> None:
        await runtime.run("cat /answer")

    async def stage_verifier(self, runtime: vf.Runtime) -> None:
        await runtime.run("cat /answer")

    @vf.reward
    async def right(self, runtime: vf.Runtime) -> float:
        return float((await runtime.run("cat /answer")).stdout == "42\n")


async def test_a_pipe_in_the_place_of_the_answer_holds_nothing_up(local: LocalProvider) -> None:
    task = Reads(vf.TaskData(name="a", prompt="?", timeout=vf.TaskTimeout(finalize=0.2, scoring=0.8)))
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": seat(local, Commands(PIPE))})).traces
    assert (trace.status, trace.reason) == ("SCORING_ERROR", "task Reads stage_verifier took longer than 0.8 s")
    assert (trace.reward, trace.is_timeout) == (None, True)
