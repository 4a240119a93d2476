"""The Env: its configuration, the order of an episode, deadlines, and what becomes of errors of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import forkyard as vf
from forkyard.env import ENVS, Env, SingleAgentEnvConfig, env_class
from forkyard.env.config import EnvTimeout
from forkyard.errors import ConfigError
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import SLOT, Commands, answering, play, seat
from tests.model.provider import error, message, reply


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig(max_turns=3)
    rounds: int = 1


class Pair(Env[PairConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        for _ in range(self.config.rounds):
            await agents.first.run(task)
            await agents.second.run(task)


class Written(vf.Task):
    @vf.reward
    async def written(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("test -e /answer")).ok)


TASK = Written(vf.TaskData(name="written", prompt="Write /answer."))
WRITES = "touch /answer"


def test_an_envs_config_is_that_of_its_generic_base() -> None:
    class Sub(Pair):
        pass

    class Plain(Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None: ...

    assert (Pair.config_type(), Sub.config_type(), Plain.config_type()) == (
        PairConfig,
        PairConfig,
        SingleAgentEnvConfig,
    )
    assert (Pair().agents, Pair().config.second.max_turns, Plain().agents) == (("first", "second"), 3, ("agent",))
    assert (Pair.id, Sub.id) == ("Pair", "Sub")


def test_a_wrong_config_is_refused() -> None:
    class NobodyConfig(vf.EnvConfig):
        pass

    class Nobody(Env[NobodyConfig]):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None: ...

    with pytest.raises(TypeError, match="Pair takes a PairConfig, not a SingleAgentEnvConfig"):
        Pair(SingleAgentEnvConfig())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no agent"):
        Nobody()


@pytest.mark.parametrize("name", ENVS)
def test_every_env_is_found_by_its_name(name: str) -> None:
    found = env_class(name)
    assert found.id == name
    assert found().agents


def test_envs_of_others_are_found_by_module_and_class() -> None:
    assert env_class("tests.env.test_env:Pair").__name__ == "Pair"
    with pytest.raises(ConfigError, match="did you mean 'best-of-n'"):
        env_class("best-of-m")
    with pytest.raises(ConfigError, match="is not a class derived from"):
        env_class("tests.env.test_env:PairConfig")
    with pytest.raises(ConfigError, match="does not define run"):
        env_class("forkyard.env:Env")


async def test_traces_are_in_the_order_they_ended_and_share_the_episode(local: LocalProvider) -> None:
    seats = {"first": seat(local, Commands(WRITES)), "second": seat(local, Commands())}
    episode = await play(Pair(PairConfig(rounds=2)), TASK, seats)
    assert [(trace.agent, trace.reward) for trace in episode.traces] == [("first", 1.0), ("second", 0.0)] * 2
    assert {trace.slot.episode for trace in episode.traces} == {episode.id}
    assert list(episode.by_agent) == ["first", "second"]


async def test_the_hooks_of_an_env_come_in_order(local: LocalProvider) -> None:
    told: list[str] = []

    class Ordered(Env):
        async def start(self) -> None:
            told.append("start")

        async def stop(self) -> None:
            told.append("stop")

        async def setup(self, agents: vf.Agents) -> None:
            told.append(f"setup {agents.agent.name}")

        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            told.append("run")
            await agents.agent.run(task)

        async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
            told.append(f"finalize {len(episode.traces)}")

    env = Ordered()
    async with env.serving():
        await play(env, TASK, {"agent": seat(local, Commands())})
    assert told == ["start", "setup agent", "run", "finalize 1", "stop"]


@pytest.mark.parametrize("hook", ["setup", "run", "finalize"])
async def test_an_env_that_raises_keeps_what_was_played(local: LocalProvider, hook: str) -> None:
    async def raises(self: Any, *args: Any) -> None:
        if hook == "run":
            await args[1].agent.run(args[0])
        raise KeyError("no such thing")

    env = type("Broken", (vf.SingleAgentEnv,), {hook: raises})()
    episode = await play(env, TASK, {"agent": seat(local, Commands(WRITES))})
    where = "finalize" if hook == "finalize" else "run"
    assert [str(err) for err in episode.errors] == [f"Broken.{where}(): KeyError: 'no such thing'"]
    assert episode.ok is False and len(episode.traces) == 1
    (trace,) = episode.traces
    assert trace.reward == (None if hook == "setup" else 1.0)
    assert trace.status is (vf.Status.INFRASTRUCTURE_ERROR if hook == "setup" else vf.Status.SCORED)
    assert "no such thing" in trace.info["env_error"]


async def test_a_run_that_starts_no_agent_is_an_error(local: LocalProvider) -> None:
    class Idle(Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None: ...

    episode = await play(Idle(), TASK, {"agent": seat(local, Commands())})
    assert str(episode.errors[0]) == "Idle.run() started no agent"
    assert episode.traces[0].status is vf.Status.INFRASTRUCTURE_ERROR


async def test_6_7_an_episode_past_its_deadline_says_so_and_its_siblings_go_on(local: LocalProvider) -> None:
    class Slow(Commands):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            if task.data.idx == 1:
                await runtime.run("sleep 1000")
            await runtime.run(WRITES)

    env, bounded = vf.SingleAgentEnv(), vf.SingleAgentEnv(SingleAgentEnvConfig(timeout=EnvTimeout(episode=1.5)))
    seats = {"agent": seat(local, Slow())}
    plays = (
        each.run_episode(TASK.with_data(idx=number), SLOT, seats) for number, each in enumerate((env, bounded, env))
    )
    fine, late, other = await asyncio.gather(*plays)
    assert (fine.ok, other.ok, late.ok, late.is_timeout) == (True, True, False, True)
    assert str(late.errors[0]) == "SingleAgentEnv.run() exceeded its 1.5s deadline (--env.timeout.episode)"
    (trace,) = (
        late.traces
    )  # every rollout that was begun leaves a line; what the agent may have caused is no free retry
    assert (trace.status, trace.is_timeout, trace.ok) == (vf.Status.INDETERMINATE, True, False)
    assert await local.sandboxes() == []


async def test_a_finalize_past_its_deadline_keeps_the_traces(local: LocalProvider) -> None:
    class Slow(vf.SingleAgentEnv):
        async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
            await asyncio.Event().wait()

    env = Slow(SingleAgentEnvConfig(timeout=EnvTimeout(finalize=0.1)))
    episode = await play(env, TASK, {"agent": seat(local, Commands(WRITES))})
    assert (episode.is_timeout, episode.traces[0].reward) == (True, 1.0)
    assert "finalize() exceeded its 0.1s deadline (--env.timeout.finalize)" in str(episode.errors[0])


async def test_a_deadline_of_the_envs_own_is_not_the_episodes(local: LocalProvider) -> None:
    class Own(Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            raise TimeoutError("mine")

    episode = await play(Own(), TASK, {"agent": seat(local, Commands())})
    assert (episode.is_timeout, str(episode.errors[0])) == (False, "Own.run(): TimeoutError: mine")


@pytest.mark.parametrize(("bound", "most"), [(1, 1), (2, 2), (None, 4)])
async def test_no_more_agents_at_once_than_the_env_allows(local: LocalProvider, bound: int | None, most: int) -> None:
    at_once: list[int] = []
    now = 0

    class Counted(Commands):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            nonlocal now
            now += 1
            at_once.append(now)
            if bound is None and now < 4:
                await everyone.wait()
            everyone.set()
            await runtime.run(["true"])
            now -= 1

    class Four(Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            await asyncio.gather(*(agents.agent.run(task) for _ in range(4)))

    everyone = asyncio.Event()
    env = Four(SingleAgentEnvConfig(max_concurrent_agents=bound))
    await play(env, TASK, {"agent": seat(local, Counted())})
    assert max(at_once) <= most and (bound is not None or max(at_once) == 4)


@pytest.mark.parametrize(
    ("limit", "value"), [("max_turns", 1), ("max_output_tokens", 1), ("max_total_tokens", 3), ("max_input_tokens", 2)]
)
async def test_6_7_a_limit_ends_the_agent_after_one_call_and_is_no_error(
    local: LocalProvider, limit: str, value: int
) -> None:
    from forkyard.harness import BashHarness

    calls = [reply(message("", ["true"]), "tool_calls")] * 5
    async with answering(*calls) as (gateway, upstream):
        config = seat(local, BashHarness(), gateway=gateway, limits=vf.AgentLimits(**{limit: value}))
        (trace,) = (await play(vf.SingleAgentEnv(), TASK, {"agent": config})).traces
    assert (trace.ok, trace.stop_condition, len(trace.calls), len(upstream.asked)) == (True, limit, 1, 1)
    assert trace.status is vf.Status.SCORED


async def test_6_7_retries_of_an_agent_leave_one_trace_with_every_error(local: LocalProvider) -> None:
    class Once(Commands):
        needs_model = True

        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            assert ctx.model is not None
            await ctx.model.complete([{"role": "user", "content": "?"}])

    async with answering(error(400, "no such thing")) as (gateway, _):
        config = seat(local, Once(), gateway=gateway, retries=vf.RetryConfig(max_retries=2))
        (trace,) = (await play(vf.SingleAgentEnv(), TASK, {"agent": config})).traces
    assert trace.status is vf.Status.INFRASTRUCTURE_ERROR
    assert ([e["type"] for e in trace.errors], len(trace.calls)) == (["provider"] * 3, 1)
    assert len(trace.info["earlier_attempts"]) == 2
