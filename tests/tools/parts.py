"""What the tests of tools share: a toolset with a state, tasks that offer it, agents that call it from a sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import forkyard as vf
from forkyard.sandbox import forwarded
from forkyard.task import ToolServer


class Ledger(vf.State):
    total: int = 0
    seen: list[str] = []


class Till(vf.Toolset[vf.ToolsetConfig, Ledger]):
    """Counts money, for each rollout apart."""

    made: ClassVar[list[Till]] = []

    def __init__(self, config: vf.ToolsetConfig | None = None) -> None:
        super().__init__(config)
        self.set_up: list[str] = []
        self.hanging, self.cancelled = asyncio.Event(), asyncio.Event()
        self.made.append(self)

    async def setup(self) -> None:
        await asyncio.sleep(0)
        self.set_up.append("setup")

    async def setup_task(self, task: vf.TaskData) -> None:
        self.state.seen.append(str(task.name))
        self.set_up.append(str(task.name))

    @vf.tool
    async def add(self, amount: int) -> int:
        """Put money in."""
        self.state.total += amount
        await asyncio.sleep(0)
        return self.state.total

    @vf.tool
    async def hang(self) -> None:
        """Never end."""
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    @vf.tool
    def rob(self) -> None:
        """End it all."""
        raise vf.ToolsetError("the till is gone")

    @vf.tool
    def spill(self) -> None:
        """Fail."""
        raise ValueError("coins everywhere")


class Shop(vf.Task[vf.TaskData, Ledger]):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Till()]

    async def finalize(self, trace: vf.Trace) -> None:
        trace.info["total"] = trace.state.total

    @vf.reward
    async def paid(self, trace: vf.Trace) -> float:
        return float(trace.state.total)


class PlainShop(Shop):
    """Without a till of its own."""

    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return []


def shop(name: str = "shop", **data: Any) -> Shop:
    return Shop(vf.TaskData(name=name, prompt="Sell.", **data))


def calling(name: str, arguments: Any = None, call_id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "tool_calls": [call]}


class Inside(vf.Harness):
    """An agent whose program works in the sandbox: what it does is given as a function of the sandbox and its tools."""

    name = "inside"
    needs_model = False
    calls_tools = "mcp"

    def __init__(self, act: Callable[[vf.Sandbox, Mapping[str, ToolServer]], Awaitable[object]]) -> None:
        self.act = act

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await self.act(runtime, ctx.tools)


ASK = r"""
import json, sys, urllib.error, urllib.request

url, method, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
try:
    print(urllib.request.urlopen(request, timeout=20).read().decode())
except urllib.error.HTTPError as err:
    print(json.dumps({"status": err.code, "body": err.read().decode()}))
except OSError as err:
    print(json.dumps({"refused": str(err)}))
"""


async def ask(box: vf.Sandbox, url: str, method: str, **params: Any) -> dict[str, Any]:
    """What a program inside the sandbox is answered."""
    done = await box.run(["python3", "-c", ASK, url, method, json.dumps(params)], timeout=30)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def call(box: vf.Sandbox, url: str, tool: str, **arguments: Any) -> str:
    """The text of a tool's result, as a program inside the sandbox gets it."""
    answer = await ask(box, url, "tools/call", name=tool, arguments=arguments)
    return str(answer["result"]["content"][0]["text"]) if "result" in answer else str(answer)


@asynccontextmanager
async def outside(box: vf.Sandbox, url: str) -> AsyncIterator[str]:
    """The address of a server in a sandbox, for clients of this machine."""
    port, _, path = url.removeprefix("http://127.0.0.1:").partition("/")
    async with forwarded(box, int(port)) as (host, at):
        yield f"http://{host}:{at}/{path}"
