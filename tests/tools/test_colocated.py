"""Toolsets that run in the agent's sandbox: what crosses, who reaches them, and that nobody wins anything by it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import forkyard as vf
from forkyard.env.checks import seat_problems
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.task import ToolServer
from forkyard.tools import python
from forkyard.tools.colocated import AT_ONCE, ColocatedServer
from forkyard.tools.placing import tool_mounts
from forkyard.tools.python import HERE
from tests.env.parts import Acts, play, seat
from tests.tools.parts import Inside, Till, call, calling, outside
from tests.tools.stock import Lost, Reader, Stock, Store, StoreConfig

pytestmark = pytest.mark.slow  # each starts Python in a sandbox
mcp = pytest.importorskip("mcp", reason="tools are served by the package mcp of PyPI")


class Row(vf.TaskData):
    answer: str = "xyzzy answer"


class Held(Stock):
    secret: str = "xyzzy combination"


class Shop(vf.Task[Row, Held]):
    offered: ClassVar[Sequence[vf.Toolset[Any, Any]]] = (Store(),)

    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset[Any, Any]]:
        return list(cls.offered)

    @vf.reward
    async def left(self, trace: vf.Trace) -> float:
        return float(trace.state.apples)


class Alike(Shop):
    offered = (Store(), Reader())


class Stuck(Shop):
    offered = (Store(StoreConfig(broken=True)),)


class Misses(Shop):
    offered = (Lost(),)


class Plain(Shop):
    offered = ()


class Here(vf.Harness):
    """An agent in this process: what it does is given as a function of its toolbox."""

    name = "here"
    needs_model = False
    calls_tools = "here"

    def __init__(self, act: Any) -> None:
        self.act = act

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await self.act(runtime, ctx.toolbox)


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python for sandboxes is made once for the tests of one process."""
    monkeypatch.setenv("FORKYARD_HOME", str(home))


def task_of(cls: type[Shop] = Shop, **data: Any) -> Shop:
    return cls(Row(name="shop", prompt="Sell.", **data))


async def one(provider: LocalProvider, task: vf.Task, act: Any) -> vf.Trace:
    episode = await play(vf.SingleAgentEnv(), task, {"agent": seat(provider, Inside(act))})
    (trace,) = episode.traces
    return trace


async def until(box: Sandbox, condition: str) -> None:
    done = await box.run(f"until {condition}; do sleep 0.02; done", timeout=60)
    assert not done.timed_out, condition


async def test_its_methods_run_in_the_sandbox_and_the_state_goes_there_and_back(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        url = tools["store"].url
        await box.write("/root/own", b"of this sandbox")
        said.append(await call(box, url, "sell", apples=2))
        said.append(await call(box, url, "sell", apples=9))
        said.append(await call(box, url, "sell", apples="many"))
        said.append(await call(box, url, "look", path="/root/own"))
        said.append(await call(box, url, "shell", command="echo 'à la carte'; cat /proc/self/comm"))

    said: list[str] = []
    trace = await one(local, task_of(), act)
    assert said[:2] == ["sold 2", "error: ValueError: there are not so many"]
    assert said[2].startswith("error: sell was called with wrong arguments")
    assert said[3:] == ["of this sandbox", "à la carte\ncat\n"]
    assert (trace.status, trace.reward, trace.errors) == ("SCORED", 1.0, [])
    assert trace.state.log == ["setup"] and trace.state.secret == "xyzzy combination"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_real_client_calls_it_as_any_other(local: LocalProvider, mode: str) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        async with outside(box, tools["store"].url) as url, mcp.Client(url, mode=mode) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert listed["sell"].description == "Sell apples."
            assert listed["sell"].input_schema["required"] == ["apples"]
            good, bad = await client.call_tool("sell", {"apples": 1}), await client.call_tool("rob")
            assert (good.content[0].text, good.is_error, bad.is_error) == ("sold 1", False, True)

    trace = await one(local, task_of(), act)
    assert (trace.reward, trace.status, trace.errors) == (2.0, "SCORED", [])


async def test_a_model_calls_it_by_the_harness_outside_and_the_gate_stands_before_it(local: LocalProvider) -> None:
    class Guarded(Shop):
        @vf.intercept
        def few(self, request: vf.Request) -> vf.Request | None:
            *before, last = request.messages
            if last.get("name") != "store_rob":
                return None
            return request.model_copy(update={"messages": [*before, last.model_copy(update={"content": "never"})]})

    acts = Acts(calling("store_sell", {"apples": 3}), calling("store_rob", call_id="c2"), {"content": "done"})
    episode = await play(vf.SingleAgentEnv(), task_of(Guarded), {"agent": seat(local, acts)})
    (trace,) = episode.traces
    said = [message["content"] for message in trace.messages if message["role"] == "tool"]
    assert (said, trace.reward) == (["sold 3", "never"], 0.0)


async def test_an_image_needs_no_python(local: LocalProvider) -> None:
    class Noted(Shop):
        async def setup(self, runtime: vf.Runtime) -> None:
            await runtime.write("/data/old", b"")

    async def act(box: Sandbox, toolbox: Any) -> None:
        await box.write("/data/note", b"in an empty image")
        said.append(await toolbox.call("store_look", {"path": "/data/note"}))

    async def scratch(task: vf.Task) -> str:
        return "scratch"

    said: list[str] = []
    here = vf.Seat(Here(act), local, scratch)
    episode = await play(vf.SingleAgentEnv(), task_of(Noted), {"agent": here})
    assert said == ["in an empty image"] and episode.traces[0].status == "SCORED"


async def test_only_what_it_says_it_uses_goes_into_the_sandbox(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["store"].url, "sell", apples=1)
        assert await call(box, tools["reader"].url, "apples") == "2"

    trace = await one(local, task_of(Alike), act)
    assert trace.state.log == ["setup", "shop {'answer': 'xyzzy answer'}"]
    async with served(local, Held()) as (box, server):
        (name, number) = (await server.call("shell", {"command": "cat /proc/$PPID/comm; echo $PPID"})).split()
        words = ["xyzzy combination", "xyzzy answer", "Sell apples."]
        memory = await box.run(["python3", "-c", SEARCH, number, *words])
        assert (name, memory.stdout) == ("loader", "[False, False, True]\n"), memory.stderr


SEARCH = """
import sys
found = b""
for line in open(f"/proc/{sys.argv[1]}/maps"):
    span, mode = line.split()[:2]
    if mode.startswith("rw") and "[v" not in line:
        start, end = (int(part, 16) for part in span.split("-"))
        with open(f"/proc/{sys.argv[1]}/mem", "rb") as file:
            file.seek(start)
            found += file.read(end - start)
print([word.encode() in found for word in sys.argv[2:]])
"""


async def test_the_agent_has_no_hold_on_it(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["store"].url, "sell", apples=1)
        tried = (
            f"for p in /proc/[0-9]*; do grep -qs {HERE} $p/cmdline || continue; n=${{p#/proc/}}; echo found; "
            "kill -9 $n 2>/dev/null && echo killed; cat $p/mem $p/environ $p/fd/* 2>/dev/null && echo read; done; "
            f"touch {HERE}/x 2>/dev/null && echo wrote; umount {HERE} 2>/dev/null && echo gone; true"
        )
        done = await box.run(["sh", "-c", tried], timeout=30)
        words.extend(done.stdout.split())
        assert await call(box, tools["store"].url, "sell", apples=1) == "sold 1"

    words: list[str] = []
    trace = await one(local, task_of(), act)
    assert "found" in words and not {"killed", "read", "wrote", "gone"} & set(words)
    assert trace.reward == 1.0


async def test_one_that_has_ended_is_a_result_of_its_calls_and_the_rollout_is_graded(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        url = tools["store"].url
        said.append(await call(box, url, "sell", apples=1))
        said.append(await call(box, url, "leave"))
        said.append(await call(box, url, "sell", apples=1))

    said: list[str] = []
    trace = await one(local, task_of(), act)
    ended = "error: the server of tools store in the sandbox has ended"
    assert said[0] == "sold 1" and [text.partition(":\n")[0][: len(ended)] for text in said[1:]] == [ended, ended]
    assert (trace.status, trace.stop_condition, trace.reward) == ("SCORED", "agent_completed", 2.0)


async def test_a_toolset_error_inside_ends_nothing(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        assert await call(box, tools["store"].url, "rob") == "error: the store is gone"
        assert await call(box, tools["store"].url, "say", size=17_000_000) == (
            "error: its answer has more than 16777216 bytes"
        )
        assert await call(box, tools["store"].url, "sell", apples=1) == "sold 1"

    assert (await one(local, task_of(), act)).status == "SCORED"


ENDS = "error: the server of tools store in the sandbox has ended"
NO_ANSWER, NO_STATE = "error: its answer is none", "error: it left a state that is none"


@asynccontextmanager
async def served(local: LocalProvider, state: Held) -> AsyncIterator[tuple[Sandbox, ColocatedServer]]:
    """A program in a sandbox that does not stand apart from others there, as where a provider cannot keep it so."""
    server = ColocatedServer(Store(), state)
    box = await local.create(SandboxSpec(mounts=await tool_mounts([Store()])))
    try:
        await server.open(box, Row())
        yield box, server
    finally:
        await server.close()
        await box.close()


async def test_what_comes_out_of_it_is_a_result_and_a_state_or_nothing(local: LocalProvider) -> None:
    forged: list[tuple[dict[str, Any], str]] = [
        ({"changed": 1}, NO_ANSWER),
        ({}, NO_ANSWER),
        ({"changed": {"artifacts": {"/etc/passwd": None}}}, NO_ANSWER),
        ({"changed": {"secret": "mine"}}, NO_ANSWER),
        ({"changed": {"__class__": "x"}}, NO_ANSWER),
        ({"changed": {"apples": "many"}}, NO_STATE),
        ({"changed": {"apples": 1, "log": [1]}}, NO_STATE),
        ({"failed": {"a": 1}}, "error: {'a': 1}"),
        ({"changed": {"apples": 7}}, "forged"),
    ]
    state = Held()
    async with served(local, state) as (_, server):
        for number, (fields, said) in enumerate(forged, 2):
            line = json.dumps({"id": number, "text": "forged", **fields}) + "\n"
            assert (await server.call("forge", {"line": line})).startswith(said), fields
            assert state.apples == (7 if said == "forged" else 3)
        nobodys = json.dumps({"id": 99, "text": "nobody's", "changed": {"apples": 1}}) + "\n"
        assert await server.call("forge", {"line": nobodys}) == ""
    assert (state.apples, state.secret, state.artifacts, state.log) == (7, "xyzzy combination", {}, ["setup"])


async def test_what_is_no_answer_ends_it(local: LocalProvider) -> None:
    lines = ["{]\n", "[1]\n", "[" * 60_000 + "\n", '{"id": [2]}\n', '{"id": 2, "text": "\\ud800"}\n']
    for line in [*lines, '{"id": ' + "9" * 5000 + "}\n"]:
        async with served(local, Held()) as (_, server):
            assert (await server.call("forge", {"line": line})).startswith(ENDS), line[:40]
            assert (await server.call("sell", {"apples": 1})).startswith(ENDS)


async def test_an_endless_answer_ends_it(local: LocalProvider) -> None:
    async with served(local, Held()) as (_, server):
        assert (await server.call("forge", {"line": "x" * 60_000, "times": 1000})).startswith(ENDS)


async def test_one_that_reads_nothing_holds_nobody_up_at_its_end(local: LocalProvider) -> None:
    async with served(local, Held()) as (box, server):
        stopping = asyncio.create_task(server.call("shell", {"command": "kill -STOP $PPID"}))
        await until(box, "grep -qs '^State:.T' /proc/[0-9]*/status")
        for _ in range(20):
            gone = [asyncio.create_task(server.call("say", {"size": 1, "more": "x" * 100_000})) for _ in range(20)]
            await asyncio.sleep(0)
            for each in gone:
                each.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
        assert len(server._lines) < 20
        waiting = [asyncio.create_task(server.call("say", {"size": 1})) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        assert {(await each) for each in waiting[-1:]} == {"error: too many calls at once"}
        await server.close()
        assert {(await each)[:6] for each in (stopping, *waiting)} == {"error:"}


async def test_whoever_kills_one_that_does_not_stand_apart_has_no_tools_any_more(local: LocalProvider) -> None:
    async with served(local, Held()) as (box, server):
        await box.run(f"pkill -9 -f {HERE}", timeout=30)
        assert (await server.call("sell", {"apples": 1})).startswith(ENDS)


async def test_a_call_whose_client_goes_is_cancelled_and_leaves_no_state(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        asking = asyncio.create_task(call(box, tools["store"].url, "hang", note="never"))
        await until(box, "test -e /tmp/hanging")
        asking.cancel()
        await until(box, "test -e /tmp/cancelled")
        assert await call(box, tools["store"].url, "sell", apples=1) == "sold 1"

    trace = await one(local, task_of(), act)
    assert (trace.reward, trace.state.notes) == (2.0, None)


async def test_calls_at_once_leave_what_each_has_changed(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        waiting = asyncio.create_task(call(box, tools["store"].url, "wait_for", path="/tmp/note"))
        await until(box, "test -e /tmp/note.waited")
        assert await call(box, tools["store"].url, "sell", apples=2) == "sold 2"
        await box.write("/tmp/note", b"late")
        assert await waiting == "there"

    trace = await one(local, task_of(), act)
    assert (trace.state.apples, trace.state.notes) == (1, "late")


async def test_it_has_ended_before_the_task_finalizes_and_is_graded(local: LocalProvider) -> None:
    class Looks(Shop):
        async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
            looked = await runtime.run("grep -aEl 'forkyard-[p]ython|sleep.6[0]0' /proc/[0-9]*/cmdline", timeout=30)
            trace.info["left"] = looked.stdout

    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["store"].url, "shell", command="setsid sleep 600 >/dev/null 2>&1 </dev/null &")
        asking.append(asyncio.create_task(call(box, tools["store"].url, "hang")))
        await until(box, "test -e /tmp/hanging")

    asking: list[asyncio.Task[str]] = []
    trace = await one(local, task_of(Looks), act)
    await asyncio.gather(*asking, return_exceptions=True)
    assert (trace.info["left"], trace.status) == ("", "SCORED")


async def test_one_that_hangs_ends_with_the_agents_time(local: LocalProvider) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        await call(box, tools["store"].url, "hang")

    trace = await one(local, task_of(timeout={"agent": 3.0}), act)
    assert (trace.stop_condition, trace.status) == ("agent_timeout", "SCORED")


@pytest.mark.parametrize(("cls", "said"), [(Stuck, "the door is stuck"), (Misses, "No module named 'pytest'")])
async def test_one_that_cannot_be_set_up_is_no_outcome_of_the_agents(
    local: LocalProvider, cls: type[Shop], said: str
) -> None:
    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        raise AssertionError("nobody acts")

    trace = await one(local, task_of(cls), act)
    assert (trace.status, trace.reward, trace.stop_condition) == ("INFRASTRUCTURE_ERROR", None, "toolset_error")
    assert said in str(trace.reason)


async def test_it_can_be_lent_and_run_in_a_sandbox_that_is_lent(local: LocalProvider) -> None:
    class Lending(vf.Env[vf.SingleAgentEnvConfig]):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            await agents.agent.run(task_of(Plain), tools=[Store()])
            async with agents.agent.provision(task) as box:
                await agents.agent.run(task, runtime=box)
            async with agents.agent.provision(task_of(Plain)) as bare:
                await agents.agent.run(task, runtime=bare)

    async def act(box: Sandbox, tools: Mapping[str, ToolServer]) -> None:
        assert await call(box, tools["store"].url, "sell", apples=1) == "sold 1"

    episode = await play(Lending(), task_of(), {"agent": seat(local, Inside(act))})
    lent, there, bare = episode.traces
    assert [(trace.status, trace.reward) for trace in (lent, there)] == [("SCORED", 2.0)] * 2
    assert bare.status == "INFRASTRUCTURE_ERROR" and "made without this machine's Python" in str(bare.reason)


async def test_what_cannot_be_taken_inside_is_refused_before_the_start(local: LocalProvider, tmp_path: Path) -> None:
    class Mine(Till):
        pass

    class Local(Shop):
        offered = (Mine(vf.ToolsetConfig(colocated=True)),)

    class Beside(Shop):
        offered = (Keeper(vf.ToolsetConfig(colocated=True)),)

    inside = Inside(None)  # type: ignore[arg-type]
    assert seat_problems(task_of(), seat(local, inside)) == []
    (told,) = seat_problems(task_of(Local), seat(local, inside))
    assert told.startswith("toolset Mine is colocated, and it is defined in a function")
    (told,) = seat_problems(task_of(Beside), seat(local, inside))
    assert told.startswith("toolset Keeper is colocated, so its module is taken into the sandbox, and ")
    assert "test_colocated holds Shop too" in told and "move the toolset, and its State, into a module" in told
    async with SubprocessProvider(tmp_path) as plain:
        said = seat_problems(task_of(), seat(plain, inside))
    assert any("needs mounts, which the provider subprocess does not promise" in text for text in said), said
    with pytest.raises(ValueError, match="one that runs already"):
        vf.ToolsetConfig(colocated=True, url="http://127.0.0.1:9/mcp")


class Keeper(vf.Toolset):
    """Lies beside a task."""

    @vf.tool
    def keep(self) -> str:
        """Nothing."""
        return ""


async def test_python_for_sandboxes_is_made_once_and_removed_when_nobody_uses_it(home: Path) -> None:
    (first,), (again,) = await tool_mounts([Store()]), await tool_mounts([Store()])
    assert first == again and first.read_only and first.source.parent == home.resolve() / "python"
    others = {name: home / "python" / name for name in ("old", "young")}
    for name, place in others.items():
        (place / "bin").mkdir(parents=True)
        place.with_suffix(".lock").touch()
        if name == "old":
            os.utime(place.with_suffix(".lock"), (0, 0))
    made = await asyncio.to_thread(python._made, home.resolve() / "python")  # as another process would
    assert made == first.source and made.exists()
    assert [place.exists() for place in others.values()] == [False, True]
    assert [place.with_suffix(".lock").exists() for place in others.values()] == [False, True]
