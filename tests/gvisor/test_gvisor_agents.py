"""An agent CLI in gVisor, asking its model through the gateway, from its first prompt to its reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forkyard as vf
from forkyard.harness import CodexHarness
from forkyard.sandbox.gvisor import GvisorProvider
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import SLOT, gateway_to, roles
from tests.harness.agents import COMMAND, equipped_or_skip
from tests.support.upstream import Turn, Upstream
from tests.support.web import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KEY = "test-key-of-nobody"


class Answers(vf.Task):
    """Wants a file with an answer in it."""

    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.run("mkdir -m 1777 /app", cwd="/")

    @vf.reward
    async def answered(self, runtime: vf.Sandbox, trace: vf.Trace) -> float:
        trace.info["keys"] = (await runtime.run(f"grep -rl {KEY} /app /root /tmp /logs")).stdout
        return float(await runtime.read("/app/answer.txt") == b"done\n")


async def test_an_agent_cli_works_in_gvisor_by_a_model_behind_the_gateway(runsc: None, common_home: Path) -> None:
    async with LocalProvider(common_home) as local:  # installed into an image that both have in common
        image = await equipped_or_skip(local, CodexHarness())

    async def image_of(task: vf.Task) -> str:
        return image

    upstream = Upstream(Turn(COMMAND), Turn())
    task = Answers(vf.TaskData(name="write", prompt="Write it.", workdir="/app"))
    async with (
        GvisorProvider(common_home) as gvisor,
        served(upstream) as port,
        gateway_to(f"http://127.0.0.1:{port}/v1") as gateway,
    ):
        agent = vf.Seat(CodexHarness(), gvisor, image_of, gateway=gateway, model="test-model")
        (trace,) = (await vf.SingleAgentEnv().run_episode(task, SLOT, {"agent": agent})).traces
    assert (trace.status, trace.reward, trace.stop_condition) == (vf.Status.SCORED, 1.0, "agent_completed"), (
        trace.reason
    )
    assert (trace.sandbox_provider, trace.steps, len(trace.calls)) == ("gvisor", 2, 2)
    assert "assistant" in roles(trace.messages)
    assert KEY not in json.dumps(trace.to_record()) and trace.info["keys"] == ""
