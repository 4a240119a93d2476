"""An agent outside any env: what `make_agent` makes of its configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.errors import ConfigError
from forkyard.gateway import Gateway, Upstream, Upstreams
from forkyard.model import Place
from tests.model.provider import KEY, playing, reply

WRITES = "tests.run.envs:Writes"
AT = "forkyard.sandbox.local:LocalProvider"


class Done(vf.Task):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("/app/answer.txt", b"")

    @vf.reward
    async def done(self, runtime: vf.Runtime) -> float:
        return float(b"done" in await runtime.read("/app/answer.txt"))


TASK = Done(vf.TaskData(name="a", prompt="Write done."))


def config(home: Path, **fields: Any) -> vf.AgentConfig:
    return vf.AgentConfig.model_validate({"harness": WRITES, "runtime": {"type": AT, "home": str(home)}, **fields})


async def test_a_configuration_is_all_that_an_agent_needs(home: Path) -> None:
    agent = vf.make_agent(config(home))
    async with agent:
        traces = await asyncio.gather(*(agent.run(TASK) for _ in range(2)))
        async with agent.provision(TASK) as box:
            traces.append(await agent.run(TASK, runtime=box))
            assert (await box.run("cat /app/answer.txt")).stdout == "done\n"
    assert [(trace.status, trace.reward, trace.agent) for trace in traces] == [("SCORED", 1.0, "agent")] * 3


async def test_its_model_is_asked_where_the_environment_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with playing(*[reply("It is done.")] * 2) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        async with vf.make_agent(config(home, harness="null", model="fake", max_turns=3)) as agent:
            trace = await agent.run(vf.Task(vf.TaskData(name="a", prompt="Is it?")))
            async with agent.interaction(vf.Task(vf.TaskData(name="b"))) as talk:
                assert (await talk.turn("And now?")).last_reply == "It is done."
    assert (trace.last_reply, trace.model, trace.stop_condition) == ("It is done.", "fake", "agent_completed")


async def test_a_gateway_that_is_given_stays_its_owners(home: Path) -> None:
    async with playing(reply("yes"), reply("no")) as provider:
        gateway = Gateway(Upstreams((Upstream(Place(provider.url), KEY),)))
        for said in ("yes", "no"):
            async with vf.make_agent(config(home, harness="null", model="fake"), gateway=gateway) as agent:
                assert (await agent.run(vf.Task(vf.TaskData(name="a", prompt="?")))).last_reply == said
        assert gateway.ledger.spent.calls == 2
        await gateway.close()


async def test_an_agent_plays_while_it_is_open_and_ends_what_it_left(home: Path) -> None:
    agent = vf.make_agent(config(home))
    with pytest.raises(RuntimeError, match="use it within `async with agent:`"):
        await agent.run(TASK)
    async with agent:
        box = await agent.provision(TASK).__aenter__()
    with pytest.raises(vf.SandboxError):
        await box.run("true")
    with pytest.raises(RuntimeError, match="was closed"):
        await agent.run(TASK)
    with pytest.raises(RuntimeError, match="opens once"):
        await agent.__aenter__()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"harness": "codecs"}, "there is no harness 'codecs'"),
        ({"harness": None}, "the harness 'bash' needs a model"),
        ({"model": "fake"}, "asks no model: leave fake out"),
        ({"runtime": {"type": "lokal"}}, "there is no provider 'lokal'"),
        (
            {"harness": "null", "model": "fake", "budget": {"usd": 1.0}},
            "needs the price of model .fake., and none is known",
        ),
    ],
)
def test_what_an_agent_cannot_be_is_said_when_it_is_made(
    home: Path, fields: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match=said):
        vf.make_agent(config(home, **fields))
