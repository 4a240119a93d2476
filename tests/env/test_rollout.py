"""Rollouts of Python tasks through real sandboxes: the order of the phases, and who answers for what goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import forkyard as vf
from forkyard.gateway import Gateway
from forkyard.harness import BashHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.task import VerifierMode
from tests.env.parts import Commands, answering, seat
from tests.model.provider import error

HIDDEN = "the answer is 42"


class Answer(vf.Task):
    """Write 42 into /app/answer."""

    async def setup(self, runtime: vf.Sandbox, trace: vf.Trace) -> None:
        trace.info["order"] = ["setup"]
        await runtime.write("/app/question", b"6 * 7")

    async def finalize(self, trace: vf.Trace) -> None:
        trace.info["order"].append("finalize")

    async def stage_verifier(self, runtime: vf.Sandbox, trace: vf.Trace) -> None:
        trace.info["order"].append("stage_verifier")
        await runtime.write("/hidden/check.sh", f"# {HIDDEN}\ngrep -qx 42 /app/answer\n".encode())

    @vf.reward
    async def right(self, runtime: vf.Sandbox, trace: vf.Trace) -> float:
        trace.info["order"].append("score")
        return float((await runtime.run(["sh", "/hidden/check.sh"])).ok)

    @vf.metric
    async def length(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("wc -c < /app/answer || echo 0")).stdout.split()[0])


async def play(
    provider: LocalProvider,
    harness: vf.Harness,
    task: vf.Task | None = None,
    verifier: VerifierMode | None = None,
    timeout: vf.TaskTimeout | None = None,
    gateway: Gateway | None = None,
) -> vf.Trace:
    config = seat(provider, harness, verifier=verifier, timeout=timeout or vf.TaskTimeout(), gateway=gateway)
    task = task or Answer(vf.TaskData(name="answer", prompt="?"))
    episode = await vf.SingleAgentEnv().run_episode(task, vf.Slot("test"), {"agent": config})
    assert [box.state for box in await provider.sandboxes() if box.name is None] == []
    (trace,) = episode.traces
    assert trace.status is not None
    return trace


@pytest.mark.parametrize("mode", ["shared", "forked"])
async def test_an_honest_answer_earns_its_reward(local: LocalProvider, mode: VerifierMode) -> None:
    trace = await play(local, Commands("echo 42 > /app/answer"), verifier=mode)
    assert (trace.status, trace.reward, trace.metrics) == (vf.Status.SCORED, 1.0, {"length": 3.0})
    assert trace.info["order"] == ["setup", "finalize", "stage_verifier", "score"]
    assert trace.stop_condition == "agent_completed"
    record = trace.to_record()
    assert list(record)[:12] == [
        *("run", "task", "sample", "model", "reward", "passed", "total", "steps", "usage", "fork_ms", "agent_ms"),
        "messages",
    ]


async def test_a_wrong_answer_is_a_zero_and_not_an_error(local: LocalProvider) -> None:
    trace = await play(local, Commands("echo 41 > /app/answer"))
    assert (trace.status, trace.reward, trace.ok) == (vf.Status.SCORED, 0.0, True)


@pytest.mark.parametrize("mode", ["shared", "forked"])
async def test_hidden_files_are_absent_while_the_agent_acts(local: LocalProvider, mode: VerifierMode) -> None:
    search = f"ls /hidden; grep -rs '{HIDDEN}' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr; echo done"
    trace = await play(local, Commands(search), verifier=mode)
    assert HIDDEN not in str(trace.messages).replace(search, "")


async def test_in_mode_forked_no_process_of_the_agent_meets_the_hidden_files(local: LocalProvider) -> None:
    lurk = "while ! [ -e /hidden/check.sh ]; do :; done; echo 42 > /app/answer"
    trace = await play(local, Commands("echo 1 > /app/answer", f"setsid sh -c '{lurk}' >/dev/null 2>&1 &"))
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 0.0)


@pytest.mark.parametrize(
    "wreck",
    [
        "rm -f /usr/lib/*/ld-linux* /lib64/ld-linux* /usr/lib64/ld-linux*",
        "rm -rf /usr/bin /usr/local/bin /bin /sbin",
        "timeout -s KILL 4 rm -rf --no-preserve-root /[!u]* /usr/lib* / 2>/dev/null",  # all of it may take a minute
        "chmod 000 /app /usr /bin",
        "mkdir -p /hidden/check.sh",
        "ln -s /dev/full /hidden",
        "mv /app /gone",
    ],
)
async def test_wrecking_the_sandbox_earns_no_second_try(local: LocalProvider, wreck: str) -> None:
    trace = await play(local, Commands(wreck))
    assert trace.status in (vf.Status.SCORED, vf.Status.INDETERMINATE, vf.Status.SCORING_ERROR), trace.reason
    assert trace.reward in (0.0, None)


async def test_a_sandbox_that_dies_under_the_agent_is_indeterminate(local: LocalProvider) -> None:
    async def kill(runtime: vf.Sandbox) -> None:
        os.kill(runtime._live.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await runtime.run(["true"])

    trace = await play(local, Commands(then=kill))
    assert trace.status is vf.Status.INDETERMINATE
    assert "sandbox" in str(trace.reason)
    assert trace.errors[0]["type"] == "sandbox"


async def test_a_task_that_cannot_be_set_up_is_infrastructure(local: LocalProvider) -> None:
    class Broken(Answer):
        async def setup(self) -> None:  # type: ignore[override]
            raise KeyError("no such thing")

    trace = await play(local, Commands(), Broken(vf.TaskData(name="broken")))
    assert trace.status is vf.Status.INFRASTRUCTURE_ERROR
    assert trace.stop_condition == "task_error"
    assert "Broken setup: KeyError" in str(trace.reason)


async def test_a_setup_that_hangs_is_infrastructure(local: LocalProvider) -> None:
    class Slow(Answer):
        async def setup(self, runtime: vf.Sandbox) -> None:  # type: ignore[override]
            await runtime.run("sleep 1000")

    trace = await play(local, Commands(), Slow(vf.TaskData(name="slow")), timeout=vf.TaskTimeout(setup=0.2))
    assert (trace.status, trace.stop_condition) == (vf.Status.INFRASTRUCTURE_ERROR, "setup_timeout")


async def test_an_agent_out_of_time_is_still_graded(local: LocalProvider) -> None:
    slow = Commands("echo 42 > /app/answer; sleep 1000")
    trace = await play(local, slow, timeout=vf.TaskTimeout(agent=2.0))
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0)
    assert (trace.stop_condition, trace.is_timeout, trace.ok) == ("agent_timeout", True, True)


async def test_a_harness_that_fails_is_neither_a_score_nor_a_second_try(local: LocalProvider) -> None:
    async def fail(runtime: vf.Sandbox) -> None:
        raise FileNotFoundError("what the agent removed")

    trace = await play(local, Commands("echo 42 > /app/answer", then=fail))
    assert trace.status is vf.Status.INDETERMINATE
    assert trace.errors[0]["type"] == "harness"
    assert trace.to_record()["reward"] is None


@pytest.mark.parametrize("hook", ["setup", "finalize", "stage_verifier"])
async def test_a_timeout_error_of_a_hooks_own_is_the_tasks_error_and_no_deadline(
    local: LocalProvider, hook: str
) -> None:
    async def times_out(self: vf.Task) -> None:
        raise TimeoutError("of its own")

    task = type("Own", (Answer,), {hook: times_out})(vf.TaskData(name="own"))
    trace = await play(local, Commands(), task)
    expected = vf.Status.INFRASTRUCTURE_ERROR if hook == "setup" else vf.Status.SCORING_ERROR
    assert (trace.status, trace.errors[0]["type"]) == (expected, "task")


async def test_a_timeout_error_of_a_harness_is_not_the_agents_deadline(local: LocalProvider) -> None:
    async def times_out(runtime: vf.Sandbox) -> None:
        raise TimeoutError("of its own")

    trace = await play(local, Commands(then=times_out))
    assert (trace.errors[0]["type"], trace.is_timeout) == ("harness", False)


@pytest.mark.parametrize("fails", [True, False])
async def test_an_agent_whose_model_never_answers_has_no_score(local: LocalProvider, fails: bool) -> None:
    replies = [error(503, "overloaded")] if fails else [{"hang": True}]
    async with answering(*replies) as (gateway, _):
        trace = await play(local, BashHarness(), gateway=gateway, timeout=vf.TaskTimeout(agent=2.0))
    assert trace.status is vf.Status.INFRASTRUCTURE_ERROR
    assert trace.errors[0]["type"] == "provider"
    assert ("overloaded" in str(trace.reason)) is fails


async def test_a_reward_that_raises_is_a_scoring_error_and_never_a_zero(local: LocalProvider) -> None:
    class Raises(Answer):
        @vf.reward
        async def broken(self) -> float:
            raise RuntimeError("cannot tell")

    trace = await play(local, Commands("echo 42 > /app/answer"), Raises(vf.TaskData(name="raises")))
    assert trace.status is vf.Status.SCORING_ERROR
    assert trace.rewards["broken"] is None
    assert trace.to_record()["reward"] is None


async def test_scoring_that_hangs_ends_at_its_deadline(local: LocalProvider) -> None:
    class Hangs(Answer):
        @vf.reward
        async def slow(self, runtime: vf.Sandbox) -> float:
            await runtime.run("sleep 1000")
            return 1.0

    trace = await play(local, Commands(), Hangs(vf.TaskData(name="hangs")), timeout=vf.TaskTimeout(scoring=0.5))
    assert trace.status is vf.Status.INDETERMINATE
    assert trace.verifier["timed_out"] is True


async def test_a_cancelled_rollout_closes_its_sandbox(local: LocalProvider) -> None:
    started = asyncio.Event()

    async def wait(runtime: vf.Sandbox) -> None:
        started.set()
        await runtime.run("sleep 1000")

    playing = asyncio.create_task(play(local, Commands(then=wait)))
    await started.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await local.sandboxes() == []


async def test_an_env_that_raises_still_leaves_a_trace(local: LocalProvider) -> None:
    class Broken(vf.Env):
        id = "broken"

        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            agents.judge  # noqa: B018

    config = seat(local, Commands())
    episode = await Broken().run_episode(Answer(vf.TaskData(name="a")), vf.Slot("r"), {"agent": config})
    assert episode.ok is False
    assert [trace.status for trace in episode.traces] == [vf.Status.INFRASTRUCTURE_ERROR]
    assert "has no agent 'judge'; it has agent" in str(episode.traces[0].reason)


async def test_an_env_may_play_its_agent_several_times(local: LocalProvider) -> None:
    class Twice(vf.Env):
        id = "twice"

        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            await asyncio.gather(agents.agent.run(task), agents["agent"].run(task))

    config = seat(local, Commands("echo 42 > /app/answer"))
    episode = await Twice().run_episode(Answer(vf.TaskData(name="a")), vf.Slot("r"), {"agent": config})
    assert [trace.reward for trace in episode.traces] == [1.0, 1.0]
    assert len({trace.id for trace in episode.traces}) == 2
    assert {trace.slot.episode for trace in episode.traces} == {episode.id}
