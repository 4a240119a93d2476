"""Limits of its own sandbox that an agent runs into and goes on after: what it is told, and what the line says."""

from __future__ import annotations

import pytest

import forkyard as vf
from forkyard.env import SingleAgentEnv
from forkyard.env.stages import _take_over
from forkyard.harness.shell import describe
from forkyard.sandbox import EndedBy, Feature, ProgramResult
from forkyard.sandbox.local import LocalProvider
from forkyard.task import TaskResources
from tests.env.parts import Acts, play, seat


class Bounded(vf.Task):
    @vf.reward
    async def done(self) -> float:
        return 1.0


def runs(command: str) -> dict[str, object]:
    return {"bash": command}


async def test_a_full_disk_of_its_own_is_told_as_that_and_is_on_the_line(local: LocalProvider) -> None:
    if Feature.LIMIT_DISK not in local.features:
        pytest.skip("disks have no bounds here")
    agent = Acts(runs("head -c 100M /dev/zero > /big; sleep 60"), {"content": "done"})
    task = Bounded(vf.TaskData(name="t", prompt="Fill it.", resources=TaskResources(disk=40 / 1024)))
    (trace,) = (await play(SingleAgentEnv(), task, {"agent": seat(local, agent)})).traces
    (said,) = [str(message["content"]) for message in trace.messages if message["role"] == "tool"]
    assert said.endswith("[this sandbox may write 40 MB to its disk, and wrote more: processes were killed]")
    assert (trace.reward, trace.to_record()["info"]["limits_hit"]) == (1.0, ["disk"])


async def test_memory_that_ran_out_under_a_command_that_ended_well_is_on_the_line(local: LocalProvider) -> None:
    if Feature.LIMIT_MEMORY not in local.features:
        pytest.skip("memory has no bounds here")
    hog = "head -c 400M /dev/zero | tail > /dev/null"  # which holds a line without end in memory
    agent = Acts(runs(f"{hog}; echo on"), {"content": "done"})
    task = Bounded(vf.TaskData(name="t", prompt="Fill it.", resources=TaskResources(memory=64 / 1024)))
    (trace,) = (await play(SingleAgentEnv(), task, {"agent": seat(local, agent)})).traces
    (said,) = [str(message["content"]) for message in trace.messages if message["role"] == "tool"]
    assert said.startswith("exit 0\non\n")
    assert trace.info["limits_hit"] == ["oom"]


class Rough(Bounded):
    """Its set-up runs into the bound of its memory, and goes on."""

    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.run("head -c 400M /dev/zero | tail > /dev/null; true")


async def test_what_was_run_into_before_the_agent_came_is_not_said_of_it(local: LocalProvider) -> None:
    if Feature.LIMIT_MEMORY not in local.features:
        pytest.skip("memory has no bounds here")
    task = Rough(vf.TaskData(name="t", prompt="Wait.", resources=TaskResources(memory=64 / 1024)))
    (trace,) = (await play(SingleAgentEnv(), task, {"agent": seat(local, Acts({"content": "done"}))})).traces
    assert trace.reward == 1.0 and "limits_hit" not in trace.info


@pytest.mark.parametrize(
    ("limit", "resources", "words"),
    [
        ("disk", TaskResources(disk=2), "this sandbox may write 2048 MB to its disk"),
        ("disk", TaskResources(memory=2), "this sandbox's disk is full"),
        ("oom", TaskResources(memory=0.5), "this sandbox may use 512 MB of memory"),
        ("oom", TaskResources(), "this sandbox's memory is full"),
        ("output", TaskResources(disk=2, memory=2), "all the output they may"),
    ],
)
def test_no_limit_of_a_sandbox_is_called_the_machines(limit: EndedBy, resources: TaskResources, words: str) -> None:
    told = describe(ProgramResult(-9, ended_by=limit), 60, 2000, resources)
    assert words in told and "machine" not in told


def test_what_a_stage_ran_into_is_said_of_the_whole() -> None:
    whole = vf.Trace(info={"limits_hit": ["oom"]})
    for stage in (vf.Trace(info={"limits_hit": ["disk"]}), vf.Trace()):
        _take_over(whole, stage)
    assert whole.info["limits_hit"] == ["disk", "oom"]
