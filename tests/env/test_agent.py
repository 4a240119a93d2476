"""An agent: loans of sandboxes, retries, conversations."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, cast

import pytest

import forkyard as vf
from forkyard.env import Env
from forkyard.env.retry import may_retry
from forkyard.errors import HarnessError, ModelError, SandboxError
from forkyard.harness import BashHarness, OracleHarness
from forkyard.sandbox import NO_NETWORK, Network
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.task.machine import Networks
from tests.env.parts import Commands, Says, answering, play, seat
from tests.model.provider import reply

TASK = vf.Task(vf.TaskData(name="task", prompt="?"))


class Written(vf.Task):
    @vf.reward
    async def written(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("test -e /answer")).ok)


def env_of(run: Any) -> Env[Any]:
    """An env with that `run`."""

    async def method(self: Any, task: vf.Task, agents: vf.Agents) -> None:
        await run(task, agents)

    return cast(Env[Any], type("Own", (Env,), {"run": method})())


# Sandboxes that are lent.


@pytest.mark.parametrize("mode", ["shared", "forked", "separate"])
async def test_a_lent_sandbox_is_worked_in_and_goes_on_running(local: LocalProvider, mode: Any) -> None:
    told: dict[str, Any] = {}

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            await box.run("setsid sleep 1000 >/dev/null 2>&1 &")
            traces = [await agents.agent.run(task, runtime=box) for _ in range(2)]
            told["alive"] = (await box.run("pgrep -c sleep")).stdout.strip()
            told["lent"] = {trace.info["lent"] for trace in traces} == {box.id}

    task = Written(vf.TaskData(name="w", prompt="?", artifacts=(vf.Artifact(source="/answer"),)))
    episode = await play(env_of(run), task, {"agent": seat(local, Commands("touch /answer"), verifier=mode)})
    assert [trace.reward for trace in episode.traces] == [1.0, 1.0], episode.traces[0].reason
    assert told == {"alive": "1", "lent": True}


async def test_a_provisioned_sandbox_is_closed_whatever_happens(local: LocalProvider) -> None:
    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision() as box:
            await agents.agent.run(task, runtime=box)
            raise RuntimeError("in the middle")

    episode = await play(env_of(run), TASK, {"agent": seat(local, Commands())})
    assert "in the middle" in str(episode.errors[0])


async def test_a_loan_that_does_not_fit_the_task_is_refused(local: LocalProvider, tmp_path: Path) -> None:
    seen: list[str] = []

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            open_to_some = task.with_data(network_allow=("example.org",))
            with pytest.raises(ValueError, match="wants the network"):
                await agents.agent.run(open_to_some, runtime=box)
            async with SubprocessProvider(tmp_path) as provider:
                plain = await provider.create(vf.SandboxSpec())
                with pytest.raises(TypeError, match="names an image"):
                    await agents.agent.run(task.with_data(image="debian"), runtime=plain)
            seen.append("both")
        with pytest.raises(ValueError, match="its owner has closed"):
            await agents.agent.run(task, runtime=box)
        await agents.agent.run(task)

    assert TASK.network in (None, NO_NETWORK)
    await play(env_of(run), TASK, {"agent": seat(local, Commands())})
    assert seen == ["both"]


async def test_another_image_than_the_lent_sandboxs_is_only_warned_of(
    local: LocalProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            await agents.agent.run(task.with_data(image="debian"), runtime=box)

    episode = await play(env_of(run), TASK, {"agent": seat(local, Commands())})
    assert episode.traces[0].ok and "names the image debian" in caplog.text


async def test_a_lender_that_closes_the_sandbox_under_a_rollout_is_told_so(local: LocalProvider) -> None:
    acting = asyncio.Event()

    async def act(runtime: vf.Sandbox) -> None:
        acting.set()
        await runtime.run("sleep 1000")

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            playing = asyncio.create_task(agents.agent.run(task, runtime=box))
            await acting.wait()
        await playing

    episode = await play(env_of(run), TASK, {"agent": seat(local, Commands(then=act))})
    assert "closed by its owner during the rollout" in str(episode.traces[0].reason)
    assert episode.traces[0].status is vf.Status.INDETERMINATE


async def test_collected_artifacts_are_in_the_traces_state(local: LocalProvider) -> None:
    kept: list[vf.Trace] = []

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        trace = await agents.agent.run(task, collect_artifacts=True, on_trace=kept.append)
        assert kept == [trace]
        assert b"hi" in (trace.state.artifacts["/app/out"] or b"")

    task = vf.Task(vf.TaskData(name="t", prompt="?", workdir="/app", artifacts=(vf.Artifact(source="out"),)))
    episode = await play(env_of(run), task, {"agent": seat(local, Commands("mkdir /app; echo hi > /app/out"))})
    assert episode.errors == []
    assert "artifacts" not in str(kept[0].to_record())


async def test_an_env_may_defer_scoring_and_grade_by_itself(local: LocalProvider) -> None:
    async def run(task: vf.Task, agents: vf.Agents) -> None:
        trace = await agents.agent.run(task.defer_scoring(), collect_artifacts=True)
        assert (trace.status, trace.rewards, trace.stop_condition) == (None, {}, "agent_completed")
        async with agents.agent.provision(task) as fresh:
            await vf.restore(fresh, trace.state.artifacts)
            await task.score(trace, fresh)

    task = Written(vf.TaskData(name="w", prompt="?", artifacts=(vf.Artifact(source="/answer"),)))
    episode = await play(env_of(run), task, {"agent": seat(local, Commands("touch /answer"))})
    assert (episode.errors, episode.traces[0].status, episode.traces[0].reward) == ([], vf.Status.SCORED, 1.0)

    async def forgets(task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task.defer_scoring())

    (trace,) = (await play(env_of(forgets), task, {"agent": seat(local, Commands())})).traces
    assert (trace.status, trace.reason) == (vf.Status.INDETERMINATE, "nobody graded it")


# Retries.


def failed(error: Exception, status: vf.Status = vf.Status.INFRASTRUCTURE_ERROR) -> vf.Trace:
    trace: vf.Trace = vf.Trace()
    trace.record_error(error)
    trace.settle(status, str(error))
    return trace


def test_the_first_rule_that_fits_an_error_decides() -> None:
    rules = (
        vf.RetryRule(type="ModelError", max_retries=0),
        vf.RetryRule(type="ProviderError", status_code=(429,), max_retries=3),
        vf.RetryRule(status_code=("5xx",), max_retries=1),
        vf.RetryRule(message="disk.*full", max_retries=2),
    )
    config = vf.RetryConfig(max_retries=1, rules=rules)
    busy, down, full = ModelError("busy", 429), ModelError("down", 503), SandboxError("the disk is full")
    assert may_retry(config, [failed(busy)] * 3) and not may_retry(config, [failed(busy)] * 4)
    assert may_retry(config, [failed(down)]) and not may_retry(config, [failed(down)] * 2)
    assert may_retry(config, [failed(full)] * 2) and not may_retry(config, [failed(full)] * 3)
    assert may_retry(config, [failed(busy), failed(down)]) and may_retry(config, [failed(down), failed(busy)])
    other = failed(SandboxError("gone"))
    assert may_retry(config, [other]) and not may_retry(config, [other, other])


def test_what_an_agent_can_provoke_earns_no_second_try_whatever_the_rules_say() -> None:
    config = vf.RetryConfig(max_retries=9, rules=(vf.RetryRule(type="HarnessError", max_retries=9),))
    assert not may_retry(config, [failed(HarnessError("broke"), vf.Status.INDETERMINATE)])
    assert not may_retry(config, [failed(SandboxError("gone"), vf.Status.INDETERMINATE)])


async def test_a_rollout_that_works_at_the_second_try_is_whole(local: LocalProvider) -> None:
    tries: list[int] = []

    class Shaky(Written):
        async def setup(self) -> None:
            tries.append(1)
            if len(tries) == 1:
                raise SandboxError("for once")

    task = Shaky(vf.TaskData(name="shaky", prompt="?"))
    config = seat(local, Commands("touch /answer"), retries=vf.RetryConfig(max_retries=1))
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
    assert (trace.reward, trace.ok, len(tries)) == (1.0, True, 2)
    assert trace.info["earlier_attempts"][0]["reason"] == "for once"


async def test_nothing_is_tried_again_in_a_lent_sandbox(local: LocalProvider) -> None:
    tries: list[int] = []

    class Broken(Written):
        async def setup(self) -> None:
            tries.append(1)
            raise SandboxError("always")

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            await agents.agent.run(task, runtime=box)

    task = Broken(vf.TaskData(name="broken", prompt="?"))
    await play(env_of(run), task, {"agent": seat(local, Commands(), retries=vf.RetryConfig(max_retries=5))})
    assert tries == [1]


# Conversations.

OPEN = Written(vf.TaskData(name="talk"))


def talked(turns: Any) -> Env[Any]:
    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            await turns(talk)

    return env_of(run)


async def test_a_conversation_goes_turn_by_turn(local: LocalProvider) -> None:
    async def turns(talk: Any) -> None:
        first = await talk.turn("hello")
        assert (first.root_reply, first.last_reply, first.terminated) == ("one", "one", False)
        assert [message["content"] for message in first.messages] == ["hello", "one"]
        second = await talk.turn({"role": "user", "content": "more"})
        assert [message["content"] for message in second.messages] == ["more", "two"]
        third = await talk.turn([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        assert third.last_reply == "three" and talk.trace.steps == 3

    episode = await play(talked(turns), OPEN, {"agent": seat(local, Says("one", "two", "three"))})
    assert episode.errors == []
    (trace,) = episode.traces
    assert (trace.stop_condition, trace.status, trace.reward) == ("user_closed", vf.Status.SCORED, 0.0)


async def test_a_task_with_a_prompt_says_it_first(local: LocalProvider) -> None:
    async def turns(talk: Any) -> None:
        with pytest.raises(ValueError, match="the first turn says nothing"):
            await talk.turn("hello")
        assert (await talk.turn()).last_reply == "one"
        with pytest.raises(ValueError, match="must say something"):
            await talk.turn()
        assert (await talk.turn("next")).last_reply == "two"

    task = OPEN.with_data(prompt="Begin.")
    episode = await play(talked(turns), task, {"agent": seat(local, Says("one", "two"))})
    assert episode.errors == []
    assert episode.traces[0].messages[0]["content"] == "Begin."


async def test_a_task_without_a_prompt_waits_for_words(local: LocalProvider) -> None:
    async def turns(talk: Any) -> None:
        with pytest.raises(ValueError, match="must say something"):
            await talk.turn()

    episode = await play(talked(turns), OPEN, {"agent": seat(local, Says("one"))})
    assert (episode.errors, episode.traces[0].stop_condition) == ([], "user_closed")


async def test_messages_that_are_left_are_said_with_the_next_turn_or_within_the_one_under_way(
    local: LocalProvider,
) -> None:
    async def turns(talk: Any) -> None:
        await talk.steer("first")
        segment = await talk.turn("second")
        assert [message["content"] for message in segment.messages] == ["first", "second", "one"]

    class Steered(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            await super().launch(ctx, task, trace, runtime)

    episode = await play(talked(turns), OPEN, {"agent": seat(local, Steered("one"))})
    assert episode.errors == []


async def test_3_4_an_agent_that_gives_no_reply_ends_the_conversation(local: LocalProvider) -> None:
    class Silent(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            """Say nothing."""

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(vf.Task(vf.TaskData(name="quiet"))) as talk:
            segment = await talk.turn("Hello?")
            assert (segment.root_reply, segment.last_reply, segment.terminated) == (None, "", True)
            with pytest.raises(ValueError, match="the conversation is over"):
                await talk.turn("Anybody?")

    episode = await play(env_of(run), TASK, {"agent": seat(local, Silent())})
    assert episode.errors == [] and episode.traces[0].ok


async def test_a_limit_or_an_error_ends_the_conversation(local: LocalProvider) -> None:
    async def limited(talk: Any) -> None:
        assert not (await talk.turn("a")).terminated
        over = await talk.turn("b")
        assert (over.terminated, over.root_reply) == (True, None)
        with pytest.raises(ValueError, match="the conversation is over"):
            await talk.turn("c")

    config = seat(local, Says("one", "two"), limits=vf.AgentLimits(max_turns=1))
    episode = await play(talked(limited), OPEN, {"agent": config})
    assert (episode.errors, episode.traces[0].stop_condition) == ([], "max_turns")

    class Breaks(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            raise RuntimeError("broken")

    async def broken(talk: Any) -> None:
        assert (await talk.turn("a")).terminated

    episode = await play(talked(broken), OPEN, {"agent": seat(local, Breaks())})
    assert (episode.traces[0].status, episode.traces[0].ok) == (vf.Status.INDETERMINATE, False)


async def test_the_agents_time_runs_only_while_it_has_the_word(local: LocalProvider) -> None:
    class Sleeps(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            if trace.steps == 1:
                await asyncio.Event().wait()
            await super().launch(ctx, task, trace, runtime)

    async def turns(talk: Any) -> None:
        await talk.turn("a")
        left = talk._rollout._left
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)
        assert talk._rollout._left == left < 2.0
        assert (await talk.turn("b")).terminated

    config = seat(local, Sleeps("one"), timeout=vf.TaskTimeout(agent=2.0))
    (trace,) = (await play(talked(turns), OPEN, {"agent": config})).traces
    assert (trace.stop_condition, trace.is_timeout, trace.ok) == ("agent_timeout", True, True)
    assert trace.status is vf.Status.SCORED


async def test_a_conversation_that_cannot_be_opened_raises(local: LocalProvider) -> None:
    raised: list[str] = []

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        with contextlib.suppress(HarnessError):
            async with agents.agent.interaction(task):
                raised.append("opened")

    episode = await play(env_of(run), OPEN, {"agent": seat(local, OracleHarness())})
    assert raised == [] and episode.traces[0].status is vf.Status.INFRASTRUCTURE_ERROR

    class Broken(Written):
        async def setup(self) -> None:
            raise KeyError("no such thing")

    episode = await play(talked(None), Broken(vf.TaskData(name="b")), {"agent": seat(local, Says())})
    assert "could not be made ready" in str(episode.errors[0])
    assert episode.traces[0].status is vf.Status.INFRASTRUCTURE_ERROR


async def test_an_env_that_raises_in_a_conversation_closes_it_and_scores_nothing(local: LocalProvider) -> None:
    async def turns(talk: Any) -> None:
        await talk.turn("a")
        raise RuntimeError("in the middle")

    episode = await play(talked(turns), OPEN, {"agent": seat(local, Says("one"))})
    assert "in the middle" in str(episode.errors[0])
    assert (episode.traces[0].status, episode.traces[0].steps) == (vf.Status.INDETERMINATE, 1)


async def test_a_conversation_with_a_real_model_and_tools_goes_on_where_it_was(local: LocalProvider) -> None:
    async def turns(talk: Any) -> None:
        assert (await talk.turn("a")).last_reply == "first"
        assert (await talk.turn("b")).last_reply == "second"

    async with answering(reply("first"), reply("second")) as (gateway, upstream):
        episode = await play(talked(turns), OPEN, {"agent": seat(local, BashHarness(), gateway=gateway)})
    assert episode.errors == []
    said = [[m["content"] for m in asked.body["messages"]] for asked in upstream.asked]
    assert said == [["a"], ["a", "first", "b"]]
    assert len(episode.traces[0].calls) == 2


async def test_a_conversation_that_is_cancelled_leaves_no_sandbox(local: LocalProvider) -> None:
    speaking = asyncio.Event()

    class Hangs(Says):
        async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
            speaking.set()
            await runtime.run("sleep 1000")

    async def turns(talk: Any) -> None:
        await talk.turn("a")

    playing = asyncio.create_task(play(talked(turns), OPEN, {"agent": seat(local, Hangs())}))
    await speaking.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await local.sandboxes() == []


async def test_a_lent_sandbox_of_a_task_with_a_network_for_setup_fits_that_task(local: LocalProvider) -> None:
    class Phases(vf.Task):
        @property
        def networks(self) -> Networks:
            return Networks(self.network, setup=Network("allowlist", ("localhost:1",)))

    async def run(task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.provision(task) as box:
            await agents.agent.run(task, runtime=box)
            await agents.agent.run(task, runtime=box)

    task = Phases(vf.TaskData(name="phases", prompt="?", network_allow=()))
    episode = await play(env_of(run), task, {"agent": seat(local, Commands("pwd"), workdir="/usr")})
    assert episode.errors == []
    assert all(trace.ok for trace in episode.traces)
