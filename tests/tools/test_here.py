"""Tools of harnesses in this process: offered beside their own, called with the rollout's state, gated by the task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import forkyard as vf
from forkyard.harness import BashHarness, NopHarness, NullHarness, OracleHarness
from forkyard.harness.mini_swe_agent import MiniSweAgentHarness
from forkyard.model import ScriptedModel
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import SLOT, Acts, Commands, answering, play, roles, seat
from tests.harness.parts import results
from tests.model.provider import message, reply
from tests.tools.parts import Ledger, PlainShop, Shop, Till, calling, shop

DATA = vf.TaskData(name="shop", prompt="Sell.")


async def one(provider: LocalProvider, task: vf.Task, harness: vf.Harness, **fields: Any) -> vf.Trace:
    episode = await play(vf.SingleAgentEnv(), task, {"agent": seat(provider, harness, **fields)})
    (trace,) = episode.traces
    return trace


async def test_a_task_with_a_toolset_is_played_by_the_bash_harness(local: LocalProvider) -> None:
    Till.made.clear()
    turns = [calling("till_add", {"amount": 2}), {"bash": "echo hi"}, calling("till_add", {"amount": 3})]
    trace = await one(local, shop(), Acts(*turns))
    assert results(trace) == ["2", "exit 0\nhi\n", "5"]
    assert (trace.status, trace.reward, trace.info["total"]) == ("SCORED", 5.0, 5)
    assert [till.set_up for till in Till.made] == [["setup", "shop"]]


async def test_the_model_is_told_of_the_tools_beside_the_harnesss_own(local: LocalProvider) -> None:
    call = reply(message(tool_calls=calling("till_add", {"amount": 4})["tool_calls"]))
    for harness, own in ((BashHarness(), ["bash"]), (NullHarness(), [])):
        async with answering(call, reply("Sold.")) as (gateway, upstream):
            trace = await one(local, shop(), harness, gateway=gateway)
        assert roles(trace.messages) == ["user", "assistant", "tool", "assistant"]
        assert (results(trace), trace.reward, trace.stop_condition) == (["4"], 4.0, "agent_completed")
        for asked in upstream.asked:
            names = [tool["function"]["name"] for tool in asked.body["tools"]]
            assert names == [*own, "till_add", "till_hang", "till_rob", "till_spill"]


async def test_what_a_model_calls_wrongly_is_told_to_it(local: LocalProvider) -> None:
    turns = [
        calling("till_ad", {"amount": 1}),
        calling("till_add", "{]"),
        calling("till_spill"),
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": ["till_add"], "arguments": [1]}}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "y", "function": {"name": "till_add", "arguments": {"amount": 9}}}],
        },
    ]
    said = results(await one(local, shop(), Acts(*turns)))
    assert said[0] == "error: there is no tool 'till_ad'; did you mean 'till_add'?"
    assert said[1].startswith("error: add was called with wrong arguments")
    assert said[2] == "error: ValueError: coins everywhere"
    assert said[3].startswith("error: there is no tool")
    assert said[4] == "9"


async def test_a_tool_that_raises_toolset_error_ends_the_rollout_without_another_try(local: LocalProvider) -> None:
    trace = await one(
        local, shop(), Acts(calling("till_rob"), calling("till_add")), retries=vf.RetryConfig(max_retries=3)
    )
    assert (trace.status, trace.stop_condition, trace.steps) == ("INDETERMINATE", "toolset_error", 1)
    assert "the till is gone" in str(trace.reason) and trace.errors[0]["type"] == "toolset"


async def test_a_tool_that_hangs_ends_with_the_agents_time(local: LocalProvider) -> None:
    Till.made.clear()
    trace = await one(local, shop(timeout={"agent": 2.0}), Acts(calling("till_hang")))
    assert (trace.stop_condition, trace.status) == ("agent_timeout", "SCORED")
    assert Till.made[0].hanging.is_set() and Till.made[0].cancelled.is_set()


async def test_a_setup_that_fails_is_infrastructure(local: LocalProvider) -> None:
    class Broken(Till):
        async def setup(self) -> None:
            raise OSError("no coins")

    class BrokenShop(Shop):
        @classmethod
        def toolsets(cls, config: Any) -> list[vf.Toolset]:
            return [Broken()]

    trace = await one(local, BrokenShop(DATA), Acts())
    assert (trace.status, trace.stop_condition) == ("INFRASTRUCTURE_ERROR", "toolset_error")
    assert trace.reason == "toolset Broken setup: OSError: no coins"


class Market(vf.Taskset[Shop]):
    tills: list[Till] = []

    def load(self) -> list[Shop]:
        return [PlainShop(vf.TaskData(name=name, prompt="Sell.")) for name in ("one", "two")]

    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        cls.tills.append(Till())
        return [cls.tills[-1]]


async def test_a_tasksets_toolset_is_one_for_all_rollouts_with_the_state_of_each(local: LocalProvider) -> None:
    Market.tills.clear()
    turns = [calling("till_add", {"amount": 1})] * 3
    seats = {"agent": seat(local, Acts(*turns))}
    plays = [vf.SingleAgentEnv().run_episode(task, SLOT, seats) for task in Market().shuffle().take(2)]
    (first,), (second,) = [episode.traces for episode in await asyncio.gather(*plays)]
    (till,) = Market.tills
    assert till.set_up[0] == "setup" and sorted(till.set_up[1:]) == ["one", "two"]
    for trace in (first, second):
        assert (results(trace), trace.reward) == (["1", "2", "3"], 3.0)
        assert trace.state.seen == [trace.task]


async def test_a_copy_of_a_task_shares_the_same_toolsets() -> None:
    task = next(iter(Market()))
    (till,) = task.shared_toolsets
    for copy in (task.defer_scoring(), task.with_data(prompt="Buy."), task.with_config(vf.TaskConfig())):
        assert copy.shared_toolsets[0] is till


async def test_an_agent_is_lent_tools(local: LocalProvider) -> None:
    class Lending(vf.Env[vf.SingleAgentEnvConfig]):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            await agents.agent.run(task, tools=[Till()])
            async with agents.agent.interaction(task, tools=[Till()]) as talk:
                await talk.turn()

    task = PlainShop(DATA)
    episode = await play(Lending(), task, {"agent": seat(local, Acts(calling("till_add", {"amount": 7})))})
    assert [(trace.reward, results(trace)) for trace in episode.traces] == [(7.0, ["7"])] * 2
    episode = await play(Lending(), task, {"agent": seat(local, Commands())})
    assert "the harness commands cannot call tools" in str(episode.errors[0])


class Guard(Shop):
    """Answers some calls in the tools' place, and forbids one."""

    @vf.intercept
    def dry(self, request: vf.Request) -> vf.Request | None:
        last = request.messages[-1]
        if not isinstance(last, vf.ToolMessage) or last.text:
            return None
        call = next(
            c for m in reversed(request.messages) for c in m.get("tool_calls") or () if c["id"] == last.tool_call_id
        )
        if "rm" not in call["function"]["arguments"] and "100" not in call["function"]["arguments"]:
            return None
        return request.model_copy(
            update={"messages": [*request.messages[:-1], last.model_copy(update={"content": "not here"})]}
        )

    @vf.stop
    def alarm(self, request: vf.Request) -> bool:
        return request.messages[-1].get("name") == "till_spill"


async def test_an_interceptor_answers_in_a_tools_place_and_a_stop_forbids_it(local: LocalProvider) -> None:
    turns = [
        calling("till_add", {"amount": 100}),
        calling("bash", {"command": "rm -rf /etc; echo gone"}),
        calling("till_add", {"amount": 1}),
        calling("bash", {"command": "test -d /etc && echo there"}),
        calling("till_spill", {}),
        calling("till_add", {"amount": 1}),
    ]
    trace = await one(local, Guard(DATA), Acts(*turns))
    assert results(trace) == ["not here", "not here", "1", "exit 0\nthere\n"]
    assert (trace.stop_condition, trace.status, trace.reward, trace.errors) == ("alarm", "SCORED", 1.0, [])
    assert trace.info["request_rewrites"] == [{"handler": "dry"}] * 2


async def test_commands_in_fences_pass_the_same_gate(local: LocalProvider) -> None:
    class Fenced(vf.Task):
        @vf.intercept
        def dry(self, request: vf.Request) -> vf.Request | None:
            last = request.messages[-1]
            if last.role != "tool" or "rm" not in request.messages[-2].text:
                return None
            return request.model_copy(update={"messages": [*request.messages[:-1], {**last, "content": "not here"}]})

    class ActsFenced(BashHarness):
        needs_model = False

        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            script = [{"content": f"```bash\n{command}\n```"} for command in ("rm -rf /etc", "ls -d /etc")]
            await super().launch(vf.ModelContext(ScriptedModel(script)), task, trace, runtime)

    trace = await one(local, Fenced(DATA), ActsFenced(tool_mode="fenced"))
    assert [m["content"] for m in trace.messages if m["role"] == "user"][1:] == ["not here", "exit 0\n/etc\n"]


async def test_an_interceptor_that_fails_at_the_gate_is_the_tasks_fault(local: LocalProvider) -> None:
    class Broken(Shop):
        @vf.intercept
        def boom(self, request: vf.Request) -> None:
            if request.messages[-1].role == "tool":
                raise KeyError("boom")

    trace = await one(local, Broken(DATA), Acts({"bash": "touch /here"}))
    assert (trace.status, trace.stop_condition) == ("SCORING_ERROR", "task_error")


def test_what_a_harness_cannot_do_with_tools_is_said_before_the_run() -> None:
    plain = vf.Task(DATA)
    assert [harness.problems(plain) for harness in (BashHarness(), MiniSweAgentHarness())] == [[], []]
    assert [harness.problems(shop()) for harness in (BashHarness(), NullHarness(), NopHarness())] == [[], [], []]
    (said,) = MiniSweAgentHarness().problems(shop())
    assert said.startswith("the harness mini-swe-agent cannot call the tools that the task offers (till): play it with")
    assert OracleHarness().problems(shop()) == ["there is no solution/solve.sh for the oracle to run"]
    (said,) = BashHarness(tool_mode="fenced").problems(shop())
    assert 'tool_mode "fenced"' in said


class Named(Till):
    TOOL_PREFIX = "a b"


class Bare(vf.Toolset):
    TOOL_PREFIX = None

    @vf.tool
    def till_add(self) -> None: ...


@pytest.mark.parametrize(
    ("toolsets", "said"),
    [
        ([Named()], "called 'a b': a name is letters"),
        ([Till(), Till()], "two servers of tools called 'till'"),
        ([Till(), Bare()], "two tools called 'till_add'"),
        ([1], "Odd.toolsets failed: "),
    ],
)
def test_what_is_wrong_with_toolsets_is_said_before_the_run(toolsets: Any, said: str) -> None:
    class Odd(vf.Task[vf.TaskData, Ledger]):
        @classmethod
        def toolsets(cls, config: Any) -> Any:
            return toolsets if toolsets != [1] else 1 / 0

    assert said in BashHarness().problems(Odd(DATA))[0]
