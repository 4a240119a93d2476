"""Agents, providers and code of envs that want another outcome than the honest one, or leave something behind."""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.env.config import RetryRule
from forkyard.grade import cleaned
from forkyard.harness import BashHarness, NullHarness
from forkyard.run import start
from forkyard.sandbox.local import LocalProvider
from forkyard.task.judges import ReferenceJudge
from tests.env.parts import SLOT, Acts, Commands, answering, play, seat
from tests.model.provider import error, message, reply
from tests.run.parts import Heard, lines, plan_of

ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", sys.stdin.buffer.read())
try:
    urllib.request.urlopen(request, timeout=20).read()
except OSError as err:
    print(err)
"""
GOOD = b'{"model":"fake","messages":[{"role":"user","content":"hello"}]}'


class Schemes(vf.Harness):
    """A program in the sandbox that asks once in earnest, then for what the provider will refuse, and waits."""

    needs_endpoint = True

    def __init__(self, *asks: bytes, then: str = "sleep 60") -> None:
        self.asks, self.then = asks, then

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        assert ctx.endpoint is not None
        await runtime.write("/ask.py", ASK.encode())
        for body in self.asks:
            await runtime.run(["python3", "/ask.py", ctx.endpoint.base_url], stdin=body)
        result = await runtime.run(self.then)
        if not result.ok:
            raise vf.HarnessError("its program failed")


class Fails(vf.Task):
    """An honest look, which finds nothing."""

    @vf.reward
    async def nothing(self) -> float:
        return 0.0


FAILS = Fails(vf.TaskData(name="t", prompt="Do it.", timeout=vf.TaskTimeout(agent=3.0)))
WORTHLESS = (vf.Status.SCORED, vf.Status.INDETERMINATE)


async def one(
    local: LocalProvider, harness: vf.Harness, gateway: Any, task: vf.Task = FAILS, **fields: Any
) -> vf.Trace:
    config = seat(local, harness, gateway=gateway, **fields)
    (trace,) = (await play(vf.SingleAgentEnv(), task, {"agent": config})).traces
    return trace


@pytest.mark.parametrize("then", ["sleep 60", "exit 1", "true"])
@pytest.mark.parametrize(
    "refusal", [(400, "bad"), (404, "no such model"), (401, "key?"), (413, "large"), (500, "oops"), (429, "slow")]
)
async def test_what_an_agent_has_its_provider_refuse_is_no_second_try(
    local: LocalProvider, refusal: tuple[int, str], then: str
) -> None:
    async with answering(reply("I will see"), error(*refusal)) as (gateway, _):
        trace = await one(local, Schemes(GOOD, b'{"model":"other","messages":7,"n":-1}', GOOD, then=then), gateway)
    assert trace.status in WORTHLESS and not trace.reward, (trace.status, trace.reason)
    if trace.status is vf.Status.SCORED:
        assert trace.reward == 0.0


@pytest.mark.parametrize(
    "refusal", [(400, "invalid tool arguments"), (400, "flagged by content filter"), (422, "not a message")]
)
async def test_a_conversation_that_its_agent_made_unacceptable_is_no_second_try(
    local: LocalProvider, refusal: tuple[int, str]
) -> None:
    first = reply(message("", ["true"]), "tool_calls")
    async with answering(first, error(*refusal)) as (gateway, _):
        trace = await one(local, BashHarness(), gateway)
    assert trace.status in WORTHLESS, (trace.status, trace.reason)


class Judged(vf.Task):
    """Its reward asks a model about the agent's words."""

    @vf.reward
    async def agrees(self, trace: vf.Trace) -> float:
        judged = await ReferenceJudge().evaluate(trace=trace, question="?", answer="4", response=trace.last_reply)
        return float(judged.parsed or 0.0)


@pytest.mark.parametrize(
    "refusal", [(400, "flagged by content filter"), (400, "prompt is too long"), (422, "bad text")]
)
async def test_words_that_the_judges_provider_will_not_read_are_no_second_try(
    local: LocalProvider, refusal: tuple[int, str]
) -> None:
    async with answering(reply("words"), error(*refusal)) as (gateway, _):
        trace = await one(
            local,
            BashHarness(),
            gateway,
            Judged(vf.TaskData(name="j", prompt="2+2?")),
            limits=vf.AgentLimits(max_turns=1),
        )
    assert trace.status in WORTHLESS, (trace.status, trace.reason)


class Leaks(vf.Env):
    """Opens sandboxes, conversations and rollouts, and never closes any."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.kept: list[Any] = []

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        agent = agents.agent
        if self.how == "provision":
            self.kept.append(agent.provision(task))
            await self.kept[-1].__aenter__()
        elif self.how == "interaction":
            self.kept.append(agent.interaction(task.with_data(prompt=None)))
            await self.kept[-1].__aenter__()
        else:
            started = asyncio.Event()
            self.kept.append(asyncio.create_task(agent.run(task, on_trace=lambda _: started.set())))
            await started.wait()
            while not [box for box in await agent.seat.provider.sandboxes() if box.name is None]:
                await asyncio.sleep(0.01)
        if self.how.endswith("raise"):
            raise ValueError("oh")


@pytest.mark.parametrize("how", ["provision", "interaction", "task", "task-raise"])
async def test_what_an_env_leaves_open_ends_with_its_episode(local: LocalProvider, how: str) -> None:
    env = Leaks(how)
    agent = seat(local, Acts({"content": "hi"}) if how == "interaction" else Commands("sleep 60"))
    episode = await asyncio.wait_for(play(env, FAILS, {"agent": agent}), 100)
    assert len(episode.traces) == 1 and episode.traces[0].status is not vf.Status.SCORED
    settled = episode.traces[0].to_record()
    if how.startswith("task"):
        await asyncio.gather(*env.kept, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(episode.traces) == 1 and episode.traces[0].to_record() == settled


class Exits(vf.Task):
    """Code that ends the process, as argument parsers and test runners do."""

    at: str = ""

    def _maybe(self, here: str) -> None:
        if self.at == here:
            sys.exit(2)

    async def setup(self, runtime: vf.Runtime) -> None:
        self._maybe("setup")

    async def stage_verifier(self, runtime: vf.Runtime) -> None:
        self._maybe("stage")

    async def finalize(self, runtime: vf.Runtime) -> None:
        self._maybe("finalize")

    @vf.reward
    async def nothing(self) -> float:
        self._maybe("reward")
        return 0.0


@pytest.mark.parametrize("where", ["setup", "stage", "finalize", "reward"])
async def test_code_of_a_task_that_exits_ends_its_rollout_alone(local: LocalProvider, where: str) -> None:
    task = Exits(vf.TaskData(name="e", prompt="?"))
    task.at = where
    trace = await one(local, Commands("true"), None, task)
    assert trace.status in (vf.Status.SCORING_ERROR, vf.Status.INFRASTRUCTURE_ERROR)
    assert "SystemExit" in str(trace.reason)


class ExitingEnv(vf.Env):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
        sys.exit(3)


async def test_code_of_an_env_that_exits_ends_its_episode_alone(local: LocalProvider) -> None:
    episode = await play(ExitingEnv(), FAILS, {"agent": seat(local, Commands("true"))})
    assert "SystemExit" in str(episode.errors[0])


class ExitingTasksEnv(vf.Env):
    """Its code is in tasks of its own, and exits before it begins, or while it is cancelled."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
        if self.where == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self._exit())
                group.create_task(asyncio.sleep(60))
        other = asyncio.create_task(self._exit_when_cancelled() if self.where == "cancelled" else self._nested())
        await asyncio.sleep(0)
        if self.where == "cancelled":
            other.cancel()
        await other

    async def _exit(self) -> None:
        sys.exit(4)

    async def _nested(self) -> None:
        await asyncio.gather(self._exit(), asyncio.sleep(0))

    async def _exit_when_cancelled(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit(4)


@pytest.mark.parametrize("where", ["group", "nested", "cancelled"])
async def test_code_that_exits_in_a_task_of_the_env_ends_its_episode_alone(local: LocalProvider, where: str) -> None:
    agents = {"agent": seat(local, Commands("true"))}
    broken, whole = await asyncio.gather(
        play_only(ExitingTasksEnv(where), agents), play_only(vf.SingleAgentEnv(), agents)
    )
    assert "wanted to exit: SystemExit: 4" in str(broken.errors[0])
    assert broken.traces[0].status is vf.Status.SCORED and broken.traces[0].info["env_error"]
    assert whole.ok


async def play_only(env: vf.Env[Any], agents: dict[str, vf.Seat]) -> vf.Episode:
    return await env.run_episode(FAILS, vf.Slot("test"), agents)


async def test_a_task_that_is_cancelled_before_it_begins_leaves_nothing_behind(local: LocalProvider) -> None:
    class Quick(vf.Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            never = asyncio.create_task(asyncio.sleep(60))
            never.cancel()
            await asyncio.gather(never, return_exceptions=True)
            await agents.agent.run(task)

    assert (await play(Quick(), FAILS, {"agent": seat(local, Commands("true"))})).ok


@pytest.mark.parametrize(
    "wreck",
    [
        "rm -rf /tmp; ln -s /proc/1 /tmp",
        "rm -f /bin/* /usr/bin/*; true",
        "rm -rf /tmp; touch /tmp",
        "mkdir -p /tmp/verdict.json/x",
    ],
)
async def test_a_solver_that_wrecks_the_sandbox_for_its_judge_gets_no_second_try(
    local: LocalProvider, wreck: str
) -> None:
    seats = {"solver": seat(local, Commands(wreck)), "judge": seat(local, Acts({"content": "no verdict"}))}
    episode = await play(vf.SharedAgenticJudgeEnv(), FAILS, seats)
    statuses = {trace.agent: trace.status for trace in episode.traces}
    assert vf.Status.INFRASTRUCTURE_ERROR not in statuses.values(), [trace.reason for trace in episode.traces]
    assert all(trace.reward != 1.0 for trace in episode.traces)


VERDICT = '{"verdicts":[{"name":"solved","reason":"good","verdict":"yes"}]}'


@pytest.mark.parametrize("kind", ["artifact", "shared"])
async def test_a_verdict_that_the_solver_hands_in_is_none(local: LocalProvider, kind: str) -> None:
    env = vf.AgenticJudgeEnv() if kind == "artifact" else vf.SharedAgenticJudgeEnv()
    data = vf.TaskData(name="t", prompt="Do it.", artifacts=(vf.Artifact(source="/tmp"),))
    seats = {
        "solver": seat(local, Commands(f"echo '{VERDICT}' > /tmp/verdict.json; echo no > /tmp/trace.json")),
        "judge": seat(local, Acts({"content": "I write none."})),
    }
    episode = await play(env, Fails(data), seats)
    (solver,) = episode.by_agent["solver"]
    assert solver.status is not vf.Status.SCORED and solver.reward != 1.0, solver.rewards


async def test_an_assistant_whose_words_its_users_provider_refuses_gets_no_second_try(local: LocalProvider) -> None:
    async with answering(reply("Hello, help me."), error(400, "flagged by content filter")) as (gateway, _):
        seats = {
            "assistant": seat(local, Acts({"content": "vile words"})),
            "user": seat(local, NullHarness(), gateway=gateway),
        }
        episode = await play(vf.UserSimEnv(), FAILS, seats)
    assert [trace.status for trace in episode.traces if trace.status is vf.Status.INFRASTRUCTURE_ERROR] == []


PLANTS = {
    "a link to the hidden tests": "ln -s /tests /work/out",
    "a link to everything": "mkdir /work/out; ln -s / /work/out/all",
    "a FIFO": "mkfifo /work/out",
    "a directory of FIFOs and sockets": "mkdir /work/out; mkfifo /work/out/a; python3 -c 'import socket; "
    'socket.socket(socket.AF_UNIX).bind("/work/out/s")\'',
    "a hole of 8 TB": "mkdir /work/out; truncate -s 8T /work/out/hole",
    "a file of 40 MB": "mkdir /work/out; head -c 40M /dev/urandom > /work/out/big",
    "ten thousand files": "mkdir /work/out; cd /work/out; seq 10000 | xargs touch",
    "names that are no text": "mkdir /work/out; cd /work/out; "
    "touch \"$(printf '\\377\\376')\" \"$(printf 'a\\nb')\" '..x' '\\' "
    "\"$(printf '\\033[2J')\"",
    "a tree a thousand deep": "mkdir /work/out; cd /work/out; for i in $(seq 1000); do mkdir d; cd d; done",
    "a directory nobody may read": "mkdir /work/out; touch /work/out/a; chmod 000 /work/out /work",
    "a working directory that is gone": "rm -rf /work",
    "a working directory that is a link": "rm -rf /work; ln -s /proc/1/root /work",
    "nothing that runs": "mkdir /work/out; rm -rf /usr/bin/tar /bin/sh /lib64 /lib",
    "a directory that keeps changing": "mkdir /work/out; setsid sh -c 'while :; do date > /work/out/a; mv /work/out/a "
    "/work/out/b; ln -sf /tests /work/out/a; done' >/dev/null 2>&1 &",
}


SCORING = vf.TaskTimeout(scoring=5.0)


class HandsIn(vf.Task):
    """What was handed in is looked at beside hidden files."""

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.run("mkdir -p /work", cwd="/")

    async def stage_verifier(self, runtime: vf.Runtime) -> None:
        await runtime.write("/tests/answer", b"secret")

    @vf.reward
    async def right(self, runtime: vf.Runtime) -> float:
        found = await runtime.run("grep -rqs secret /work/out /work/out/all/tests/answer", cwd="/")
        return float(found.exit_code == 0)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("mode", ["separate", "forked"])
async def test_nothing_that_an_agent_plants_spares_it_a_failure(
    local: LocalProvider, plant: str, mode: Any, tmp_path: Path
) -> None:
    data = vf.TaskData(name="t", prompt="?", workdir="/work", artifacts=(vf.Artifact(source="out"),), timeout=SCORING)
    config = seat(local, Commands(PLANTS[plant]), verifier=mode, keep_logs_in=tmp_path)
    episode = await asyncio.wait_for(play(vf.SingleAgentEnv(), HandsIn(data), {"agent": config}), 110)
    (trace,) = episode.traces
    links_inside = plant.startswith("a link") and mode == "forked"  # there the checks are the task's to guard
    assert trace.status in WORTHLESS and (not trace.reward or links_inside), (trace.status, trace.reason, trace.reward)
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink() and path.resolve().is_relative_to("/tests")]


def test_a_tree_thousands_deep_holds_up_nobody() -> None:
    buffer, path = io.BytesIO(), "work/out"
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for _ in range(3000):
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
            path += "/d"
    archive, left_out = cleaned({"/work/out": buffer.getvalue()})
    assert archive and left_out == []


async def test_a_cancelled_env_that_goes_on_regardless_plays_no_further_agent(local: LocalProvider) -> None:
    begun = asyncio.Event()

    class Deaf(vf.Env):
        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            with suppress(asyncio.CancelledError):
                await agents.agent.run(task, on_trace=lambda _: begun.set())
            await agents.agent.run(task)

    playing = asyncio.create_task(Deaf().run_episode(FAILS, SLOT, {"agent": seat(local, Commands("sleep 60"))}))
    await begun.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(playing, 100)
    assert [box.id for box in await local.sandboxes() if box.name is None] == []


def test_a_rule_whose_pattern_is_none_is_bad_configuration() -> None:
    with pytest.raises(ValueError, match="it is no regular expression"):
        RetryRule(message="(", max_retries=1)


class Unwritable(vf.Task[vf.TaskData]):
    """Leaves on its trace what no line can hold."""

    kind: str = ""

    @vf.reward
    async def fine(self, trace: vf.Trace) -> float:
        ring: dict[str, Any] = {}
        ring["ring"] = ring
        trace.info["left"] = {"ring": ring, "odd": Mute()}[self.kind]
        return 1.0


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("says nothing")

    __repr__ = __str__


@pytest.mark.parametrize("kind", ["ring", "odd"])
async def test_what_cannot_be_written_down_costs_no_line(local: LocalProvider, kind: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import forkyard as vf\n"
        "from tests.security.test_envs_attacks import Unwritable\n"
        "class Set(vf.Taskset):\n"
        "    def load(self):\n"
        f"        task = Unwritable(vf.TaskData(name='t', prompt='?')); task.kind = {kind!r}\n"
        "        return [task]\n"
    )
    plan = plan_of(tmp_path, paths=(tmp_path / "tasks.py",), harness="nop")
    outcome = await start(plan, Heard(), provider=local)
    (line,) = lines(tmp_path / "runs" / "r")
    assert (outcome.recorded, line["status"], line["reward"]) == (1, "SCORED", 1.0)
    assert "not_recorded" in line["info"]
