"""Tools served at a sandbox's loopback: by MCP, to this rollout's programs alone, until the seal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import forkyard as vf
from forkyard.harness import BashHarness
from forkyard.sandbox import Sandbox
from forkyard.sandbox.local import LocalProvider
from forkyard.task import ToolServer
from forkyard.tools.requests import AT_ONCE, BODY_LIMIT
from tests.env.parts import SLOT, play, seat
from tests.tools.parts import Inside, PlainShop, Shop, Till, ask, call, outside, shop

mcp = pytest.importorskip("mcp", reason="tools are served by the package mcp of PyPI")
DATA = vf.TaskData(name="shop", prompt="Sell.")


async def one(provider: LocalProvider, task: vf.Task, act: Any) -> vf.Trace:
    episode = await play(vf.SingleAgentEnv(), task, {"agent": seat(provider, Inside(act))})
    (trace,) = episode.traces
    return trace


async def test_a_program_in_a_sandbox_without_network_calls_tools(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        url = tools["till"].url
        for amount in (2, 3):
            said.append(await call(box, url, "add", amount=amount))
        said.append(await call(box, url, "add", amount="much"))
        said.append(await call(box, url, "spill"))
        said.append(await call(box, url, "till_add"))

    said: list[str] = []
    trace = await one(local, shop(), act)
    assert said[:2] == ["2", "5"] and said[2].startswith("error: add was called with wrong arguments")
    assert said[3:] == [
        "error: ValueError: coins everywhere",
        "error: there is no tool 'till_add'; there is add, hang, rob, spill",
    ]
    assert (trace.status, trace.reward, trace.errors) == ("SCORED", 5.0, [])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_real_client_is_served_in_each_era_of_the_protocol(local: LocalProvider, mode: str) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        async with outside(box, tools["till"].url) as url, mcp.Client(url, mode=mode) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(listed) == ["add", "hang", "rob", "spill"]
            assert listed["add"].description == "Put money in."
            assert listed["add"].input_schema["required"] == ["amount"]
            good, bad = await client.call_tool("add", {"amount": 4}), await client.call_tool("spill")
            assert ([good.content[0].text], good.is_error, bad.is_error) == (["4"], False, True)

    assert (await one(local, shop(), act)).reward == 4.0


async def test_rollouts_at_once_see_their_own_state_alone(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        urls.add(tools["till"].url)
        for amount in (1, 1, 1):
            await call(box, tools["till"].url, "add", amount=amount)

    urls: set[str] = set()
    seats = {"agent": seat(local, Inside(act))}
    plays = [vf.SingleAgentEnv().run_episode(shop(name), SLOT, seats) for name in ("a", "b", "c")]
    traces = [episode.traces[0] for episode in await asyncio.gather(*plays)]
    assert [(trace.reward, trace.state.seen) for trace in traces] == [(3.0, [name]) for name in "abc"]
    assert len(urls) == 1  # each on a loopback of its own


async def test_a_shared_toolset_is_called_with_the_state_of_the_sandbox_it_is_called_from(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        for amount in (1, 2):
            await call(box, tools["till"].url, "add", amount=amount)

    till = Till()
    seats = {"agent": seat(local, Inside(act))}
    tasks = [PlainShop(vf.TaskData(name=name, prompt="Sell.")).sharing([till]) for name in ("a", "b")]
    plays = [vf.SingleAgentEnv().run_episode(task, SLOT, seats) for task in tasks]
    traces = [episode.traces[0] for episode in await asyncio.gather(*plays)]
    assert [(trace.reward, trace.state.seen) for trace in traces] == [(3.0, ["a"]), (3.0, ["b"])]
    assert sorted(till.set_up) == ["a", "b", "setup"]


LOOP = "(while :; do python3 -c \"$0\" %s tools/call '%s' >>/tmp/said; done) >/dev/null 2>&1 &"


async def test_a_left_over_process_is_refused_after_the_seal(local: LocalProvider) -> None:
    from tests.tools.parts import ASK

    class Late(Shop):
        async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:  # type: ignore[override]
            before = trace.state.total
            await runtime.run("rm -f /tmp/said; until grep -q refused /tmp/said; do sleep 0.02; done", timeout=60)
            assert b'"result"' not in await runtime.read("/tmp/said")
            trace.info["late"] = trace.state.total - before

    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        asked = '{"name": "add", "arguments": {"amount": 1}}'
        await box.run(["bash", "-c", LOOP % (tools["till"].url, asked), ASK])
        await box.run("until grep -q result /tmp/said; do sleep 0.02; done", timeout=60)

    trace = await one(local, Late(DATA), act)
    assert (trace.info["late"], trace.errors) == (0, []) and trace.reward is not None and trace.reward >= 1


async def test_a_call_under_way_at_the_seal_is_cancelled(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        asking.append(asyncio.create_task(ask(box, tools["till"].url, "tools/call", name="hang", arguments={})))
        await Till.made[-1].hanging.wait()

    asking: list[asyncio.Task[dict[str, Any]]] = []
    trace = await one(local, shop(), act)
    await asyncio.gather(*asking, return_exceptions=True)
    assert Till.made[-1].cancelled.is_set() and trace.status == "SCORED"


async def test_a_call_whose_client_goes_is_cancelled(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        asking = asyncio.create_task(ask(box, tools["till"].url, "tools/call", name="hang", arguments={}))
        await Till.made[-1].hanging.wait()
        asking.cancel()  # which kills the program
        await Till.made[-1].cancelled.wait()

    assert (await one(local, shop(), act)).errors == []


async def test_a_tool_that_hangs_ends_with_the_agents_time(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["till"].url, "hang")

    trace = await one(local, shop(timeout={"agent": 3.0}), act)
    assert (trace.stop_condition, trace.status) == ("agent_timeout", "SCORED")
    assert Till.made[-1].cancelled.is_set()


async def test_a_tool_that_raises_toolset_error_ends_the_rollout(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["till"].url, "rob")
        await asyncio.Event().wait()

    trace = await one(local, shop(), act)
    assert (trace.status, trace.stop_condition) == ("INDETERMINATE", "toolset_error")
    assert "the till is gone" in str(trace.reason)


async def test_the_tasks_interceptors_and_stops_are_asked(local: LocalProvider) -> None:
    class Guard(Shop):
        @vf.intercept
        def dry(self, request: vf.Request) -> vf.Request | None:
            if request.messages[-1].get("name") != "till_add":
                return None
            full = request.messages[-1].model_copy(update={"content": "closed today"})
            return request.model_copy(update={"messages": [*request.messages[:-1], full]})

        @vf.stop
        def alarm(self, request: vf.Request) -> bool:
            return request.messages[-1].get("name") == "till_rob"

    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        said.append(await call(box, tools["till"].url, "add", amount=5))
        await call(box, tools["till"].url, "rob")
        await asyncio.Event().wait()

    said: list[str] = []
    trace = await one(local, Guard(DATA), act)
    assert said == ["closed today"]
    assert (trace.stop_condition, trace.status, trace.reward) == ("alarm", "SCORED", 0.0)


RAW = r"""
import socket, sys, threading

port, size, flood = (int(word) for word in sys.argv[1:])
head = "POST /till HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
head += "accept: application/json, text/event-stream\r\n"


def send(body, headers=head, length=None):
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        try:
            length = len(body) if length is None else length
            sock.sendall((headers + f"content-length: {length}\r\n\r\n").encode() + body)
            return sock.recv(100).split(b" ")[1:2]
        except OSError:
            return []


bodies = [b"", b"{]", b"null", b"[]", b"[" * 200000, b'{"jsonrpc": "2.0"}', b'"' + b"\xff" * 99, b"1" * 5000]
bodies += [b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}' % p for p in (b"1", b'{"name":1}', b"{}")]
bodies += [b'{"jsonrpc":"2.0","id":{"a":[1]},"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1,"method":"no/such"}']
for body in bodies:
    answer = send(body)
    assert answer and answer[0] not in (b"500",), (body[:60], answer)
large, endless = send(b" " * (size + 1)), send(b"x" * 9, length=10**12)
print(large, endless, send(b"{}", head.replace("POST", "GET")), send(b"", "NONSENSE\r\n"))
hang = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{}}}'
socks = []
for _ in range(flood):
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.sendall((head + f"content-length: {len(hang)}\r\n\r\n").encode() + hang)
    socks.append(sock)
print(sum(sock.recv(20).split(b" ")[1] == b"503" for sock in socks[-20:]))
"""


async def test_hostile_clients_hurt_nobody(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        url = tools["till"].url
        port = url.rpartition(":")[2].partition("/")[0]
        done = await box.run(["python3", "-c", RAW, port, str(BODY_LIMIT), str(AT_ONCE + 20)], timeout=60)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.split("\n")[:2] == ["[b'413'] [b'413'] [b'405'] [b'400']", "20"], done.stdout
        said.append(await until_served(box, url))

    async def until_served(box: Sandbox, url: str) -> str:
        while "503" in (answer := await call(box, url, "add", amount=1)):
            pass
        return answer

    said: list[str] = []
    trace = await one(local, shop(), act)
    assert trace.errors == []
    assert (said, trace.status) == (["1"], "SCORED")


async def test_servers_that_a_task_names_itself_are_handed_on(local: LocalProvider) -> None:
    own = {"web": ToolServer("http://web:8000/mcp"), "files": ToolServer(transport="stdio", command="files")}

    class Named(vf.Task):
        @property
        def tool_servers(self) -> Mapping[str, ToolServer]:
            return own

    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        given.append(tools)

    given: list[Mapping[str, ToolServer]] = []
    await one(local, Named(DATA), act)
    assert given == [own]
    assert Inside(act).problems(Named(DATA)) == []
    assert "are reached inside only" in BashHarness().problems(Named(DATA))[0]
