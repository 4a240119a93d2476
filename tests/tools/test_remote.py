"""Toolsets that run elsewhere: asked from outside the sandbox, offered as any other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

import forkyard as vf
from forkyard.gateway.listening import serve
from forkyard.sandbox import Sandbox
from forkyard.sandbox.local import LocalProvider
from forkyard.task import ToolServer
from tests.env.parts import Acts, play, seat
from tests.harness.parts import results
from tests.tools.parts import Inside, call, calling

mcp = pytest.importorskip("mcp", reason="tools elsewhere are reached by the package mcp of PyPI")


@asynccontextmanager
async def weather() -> AsyncIterator[str]:
    """A server of tools of somebody else's, on this machine."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    server = MCPServer("weather")

    @server.tool(description="How warm it is.")
    def warmth(city: str) -> str:
        if city == "nowhere":
            raise ValueError("no such city")
        return f"{city}: 21"

    manager = StreamableHTTPSessionManager(server._lowlevel_server)
    over, ready = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with manager.run():
            ready.set()
            await over.wait()

    running = asyncio.create_task(run())
    await ready.wait()
    listener = await serve(manager.handle_request, socket.create_server(("127.0.0.1", 0)))
    try:
        yield f"http://127.0.0.1:{listener.port}/mcp"
    finally:
        listener.close()
        over.set()
        await running


class Weather(vf.Toolset[vf.SharedToolsetConfig]):
    """Runs elsewhere."""


def forecast(url: str) -> vf.Task:
    class Forecast(vf.Task):
        @classmethod
        def toolsets(cls, config: Any) -> list[vf.Toolset[Any, Any]]:
            return [Weather(vf.SharedToolsetConfig(url=url))]

    return Forecast(vf.TaskData(name="forecast", prompt="Warm?"))


async def one(provider: LocalProvider, task: vf.Task, harness: vf.Harness) -> vf.Trace:
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": seat(provider, harness)})).traces
    return trace


async def test_a_harness_of_this_process_calls_them(local: LocalProvider) -> None:
    turns = [
        calling("weather_warmth", {"city": "Bern"}),
        calling("weather_warmth", {"city": "nowhere"}),
        calling("weather_warmth", {"town": "Bern"}),
        calling("weather_warmth", "[1]"),
        calling("weather_cold"),
    ]
    async with weather() as url:
        trace = await one(local, forecast(url), Acts(*turns))
    said = results(trace)
    assert said[0] == "Bern: 21"
    assert [text.partition(":")[0] for text in said[1:]] == ["error"] * 4 and "Error executing tool warmth" in said[1]
    assert (trace.errors, trace.stop_condition) == ([], "agent_completed")


async def test_a_sandbox_without_network_reaches_them_and_only_them(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        said.append(await call(box, tools["weather"].url, "warmth", city="Bern"))
        said.append(await call(box, tools["weather"].url, "warmth", city="nowhere"))
        said.append((await box.run(["python3", "-c", f"import urllib.request as r; r.urlopen({url!r})"])).stderr)

    said: list[str] = []
    async with weather() as url:
        trace = await one(local, forecast(url), Inside(act))
    assert said[0] == "Bern: 21" and "Error executing tool warmth" in said[1] and "refused" in said[2]
    assert trace.errors == []


async def test_a_server_that_is_not_there_is_infrastructure(local: LocalProvider) -> None:
    trace = await one(local, forecast("http://127.0.0.1:9/mcp"), Acts())
    assert (trace.status, trace.stop_condition) == ("INFRASTRUCTURE_ERROR", "toolset_error")
    assert str(trace.reason).startswith("the server of tools weather at http://127.0.0.1:9/mcp cannot be used: ")


async def test_a_server_that_goes_away_ends_the_rollout(local: LocalProvider) -> None:
    class Ends(Acts):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            await serving.__aexit__(None, None, None)
            await super().launch(ctx, task, trace, runtime)

    serving = weather()
    url = await serving.__aenter__()
    trace = await one(local, forecast(url), Ends(calling("weather_warmth", {"city": "Bern"})))
    assert (trace.status, trace.stop_condition) == ("INDETERMINATE", "toolset_error")


async def test_a_server_that_never_answers_is_given_up_with_the_setup(local: LocalProvider) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.transport.abort()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        trace = await one(local, forecast(url).with_data(timeout={"setup": 1.0}), Acts())
    assert (trace.status, trace.stop_condition) == ("INFRASTRUCTURE_ERROR", "setup_timeout")
