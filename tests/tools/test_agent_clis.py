"""The real agent CLIs call a task's tools, each in its own dialect, from a sandbox without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import forkyard as vf
from forkyard.harness import ClaudeCodeHarness, CodexHarness
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import SLOT, gateway_to, roles
from tests.harness.agents import equipped_or_skip
from tests.support.upstream import Turn, Upstream
from tests.tools.parts import Ledger, Shop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
pytest.importorskip("mcp", reason="tools are served by the package mcp of PyPI")


@pytest.fixture(scope="session")
def home(common_home: Path) -> Path:
    """One for all processes of the test run, so that each CLI is installed once."""
    return common_home


@asynccontextmanager
async def on_this_machine(upstream: Upstream) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await upstream(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


class Careful(Shop):
    """Answers in the tool's place when too much is put in."""

    @vf.intercept
    def too_much(self, request: vf.Request) -> vf.Request | None:
        last = request.messages[-1]
        calls = [call for message in request.messages for call in message.get("tool_calls") or ()]
        if not isinstance(last, vf.ToolMessage) or last.text or "100" not in str(calls[-1]["function"]["arguments"]):
            return None
        return request.model_copy(
            update={"messages": [*request.messages[:-1], last.model_copy(update={"content": "too much"})]}
        )


@pytest.mark.parametrize("harness", [CodexHarness(), ClaudeCodeHarness()], ids=lambda harness: str(harness.name))
async def test_it_calls_the_tasks_tools(local: LocalProvider, harness: vf.Harness) -> None:
    image = await equipped_or_skip(local, harness)
    upstream = Upstream(Turn(add=4), Turn(add=100), Turn(add=3), Turn())

    async def image_for(task: vf.Task) -> str:
        return image

    async with on_this_machine(upstream) as url, gateway_to(url) as gateway:
        seat = vf.Seat(harness, local, image_for, gateway=gateway, model="test-model")
        task = Careful(vf.TaskData(name="shop", prompt="Sell.", timeout={"agent": 200}))
        episode = await vf.SingleAgentEnv().run_episode(task, SLOT, {"agent": seat})
    (trace,) = episode.traces
    assert (trace.status, trace.reward, trace.errors, trace.last_reply) == ("SCORED", 7.0, [], "All done.")
    assert roles(trace.messages) == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert [
        next(word for word in ("too much", "4", "7") if word in message["content"])
        for message in trace.messages
        if message["role"] == "tool"
    ] == ["4", "too much", "7"]
    assert "too much" in json.dumps(upstream.asked()[2]) and isinstance(trace.state, Ledger)
