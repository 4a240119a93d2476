"""The harness `null`: one reply, no tools, and it can be talked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from forkyard.errors import HarnessError
from forkyard.harness import NullHarness, make_harness
from forkyard.model import Reply, ScriptedModel
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.values import SandboxSpec
from forkyard.trace import AgentLimits
from tests.harness.parts import make_task, play, roles


class Asked(ScriptedModel):
    """Remembers what tools it was offered."""

    def __init__(self, *replies: str) -> None:
        super().__init__([{"content": text} for text in replies])
        self.offered: list[Sequence[Any]] = []

    async def complete(self, messages: Any, tools: Any = (), *more: Any) -> Reply:
        self.offered.append(tools)
        return await super().complete(messages, tools, *more)


async def test_it_asks_once_and_offers_nothing(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    model = Asked("one", "two")
    task = make_task(prompt="Say one.", system_prompt="Be short.")
    trace = await play(make_harness("null"), model, sandbox, task)
    assert roles(trace.messages) == ["system", "user", "assistant"]
    assert (trace.last_reply, trace.steps, trace.stop_condition) == ("one", 1, "agent_completed")
    assert model.offered == [()]


async def test_a_limit_that_is_reached_leaves_it_nothing_to_ask(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    trace = await play(NullHarness(), Asked("one"), sandbox, limits=AgentLimits(max_output_tokens=1))
    assert trace.steps == 1
    again = await play(NullHarness(), Asked("one"), sandbox, limits=AgentLimits(max_turns=1))
    assert (again.steps, again.stop_condition) == (1, "agent_completed")


async def test_it_needs_a_model(local: LocalProvider) -> None:
    sandbox = await local.create(SandboxSpec())
    with pytest.raises(HarnessError, match="needs a model"):
        await play(NullHarness(), None, sandbox)
