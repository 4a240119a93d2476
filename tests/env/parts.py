"""What the tests of envs share: seats, agents that run commands, agents that speak from a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import forkyard as vf
from forkyard.env import Env
from forkyard.gateway import Gateway, Upstream, Upstreams
from forkyard.harness import BashHarness, NullHarness
from forkyard.model import Place, ScriptedModel
from forkyard.sandbox import Provider
from tests.model.provider import FakeProvider, playing

SLOT = vf.Slot("test")


class Commands(vf.Harness):
    """An agent that runs shell commands, then may do something of its own."""

    name = "commands"
    needs_model = False

    def __init__(self, *commands: str, then: Callable[[vf.Sandbox], Any] | None = None) -> None:
        self.commands, self.then = commands, then

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        for command in self.commands:
            result = await runtime.run(command, cwd="/", timeout=100)
            trace.messages.append({"role": "tool", "tool_call_id": "0", "content": result.stdout + result.stderr})
        if self.then:
            await self.then(runtime)


class Says(NullHarness):
    """Talks from a script, one reply a turn, and stops where the script says so."""

    needs_model = False

    def __init__(self, *replies: str) -> None:
        self.replies = replies

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        model = ScriptedModel([{"content": text} for text in self.replies], trace.steps)
        await super().launch(replace(ctx, model=model), task, trace, runtime)


class Acts(BashHarness):
    """The bash harness with a script for a model."""

    needs_model = False

    def __init__(self, *turns: Mapping[str, Any]) -> None:
        super().__init__(tool_mode="native")
        self.turns = turns

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        model = ScriptedModel(self.turns, trace.steps)
        await super().launch(replace(ctx, model=model), task, trace, runtime)


async def host_image(task: vf.Task) -> str:
    return "host"


def seat(provider: Provider, harness: vf.Harness, **fields: Any) -> vf.Seat:
    if fields.get("gateway") is not None:
        fields.setdefault("model", "fake")
    return vf.Seat(harness, provider, host_image, **fields)


async def play(env: Env[Any], task: vf.Task, seats: Mapping[str, vf.Seat]) -> vf.Episode:
    """One episode, after which no sandbox is left."""
    episode = await env.run_episode(task, SLOT, seats)
    for place in {id(seat.provider): seat.provider for seat in seats.values()}.values():
        assert [box.id for box in await place.sandboxes() if box.name is None] == []
    assert all(trace.status is not None for trace in episode.traces)
    for trace in episode.traces:
        trace.to_record()
    return episode


@asynccontextmanager
async def gateway_to(url: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(Upstreams((Upstream(Place(url), "test-key-of-nobody"),)))
    try:
        yield gateway
    finally:
        await gateway.close()


@asynccontextmanager
async def answering(*replies: dict[str, Any]) -> AsyncIterator[tuple[Gateway, FakeProvider]]:
    """A gateway to a provider that plays replies."""
    async with playing(*replies) as upstream, gateway_to(upstream.url) as gateway:
        yield gateway, upstream


def roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]
