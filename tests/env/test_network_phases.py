"""The network of each phase of a rollout: set up, act, grade."""

from __future__ import annotations

import asyncio

import pytest

import forkyard as vf
from forkyard.sandbox import NO_NETWORK, Network
from forkyard.sandbox.local import LocalProvider
from forkyard.task import VerifierMode
from forkyard.task.machine import Networks
from tests.support.web import Web, served

GET = "curl -sS --noproxy '' http://localhost:{port}/{phase} || true"


class Data(vf.TaskData):
    port: int
    asked_for: tuple[str, ...] = ()


class Curl(vf.Harness):
    """An agent that asks one server."""

    name = "curl"
    needs_model = False

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        assert isinstance(task.data, Data)
        await runtime.run(GET.format(port=task.data.port, phase="agent"), timeout=20)


async def play(local: LocalProvider, task: vf.Task) -> vf.Trace:
    async def image_for(task: vf.Task) -> str:
        return "host"

    config = vf.Seat(Curl(), local, image_for)
    episode = await vf.SingleAgentEnv().run_episode(task, vf.Slot("test"), {"agent": config})
    (trace,) = episode.traces
    return trace


class Phases(vf.Task[Data]):
    """Reaches a server while it is set up and graded, and nothing while the agent acts."""

    def _of(self, phase: str) -> Network:
        hosts = (f"localhost:{self.data.port}", f"127.0.0.0/8:{self.data.port}")
        return Network("allowlist", hosts) if phase in self.data.asked_for else NO_NETWORK

    @property
    def network(self) -> Network:
        return self._of("agent")

    @property
    def networks(self) -> Networks:
        return Networks(self.network, self._of("setup"), self._of("verifier"))

    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.run(GET.format(port=self.data.port, phase="setup"), timeout=20)

    @vf.reward
    async def done(self, runtime: vf.Sandbox) -> float:
        await runtime.run(GET.format(port=self.data.port, phase="verifier"), timeout=20)
        return 1.0


@pytest.mark.parametrize("mode", ["shared", "forked"])
@pytest.mark.parametrize("asked_for", [("setup", "verifier"), ("agent",), ()])
async def test_each_phase_reaches_what_it_may(
    local: LocalProvider, mode: VerifierMode, asked_for: tuple[str, ...]
) -> None:
    web = Web()
    async with served(web) as port:
        task = Phases(Data(port=port, asked_for=asked_for, verifier=mode))
        trace = await play(local, task)
    assert trace.reward == 1.0
    assert [head.split(b" ")[1].decode().strip("/") for head in web.heard] == list(asked_for)
    recorded = [visit for visit in trace.info.get("network", []) if visit["refused"] is None]
    assert sum(visit["count"] for visit in recorded) == len([phase for phase in asked_for if phase != "verifier"]) + (
        mode == "shared" and "verifier" in asked_for
    )
    assert not [task for task in asyncio.all_tasks() if "Door" in getattr(task.get_coro(), "__qualname__", "")]
