"""A server that ended, in good order or killed at any moment: what another finds, and that nothing else is left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from forkyard.sandbox.local import LocalProvider
from forkyard.server.sandboxes.states import Phase
from tests.server.sandboxing import HOST, site
from tests.support.leftovers import NOTHING, mounts_of, processes_of, stray_directories

ROOT = Path(__file__).parents[2]
STEPS = ("create", "stop", "fork", "pause", "shared", "start", "live fork", "slow stop", "stop it", "deletion", "end")

LIFE = """
    import asyncio, json, sys
    from pathlib import Path
    from tests.server.sandboxing import site

    async def main():
        async with site(Path(sys.argv[1])) as here:
            wanted = {}  # by sandbox: the contents its file may have by now

            def say(step):
                print(json.dumps([step, wanted]), flush=True)

            def ack(sandbox, *contents):
                wanted[sandbox["sandbox_id"]] = contents

            say("create")
            source = await here.create("source")
            await here.sh(source, "echo one > /file; sync")
            ack(source, "one\\n")
            say("stop")
            await here.do(source, "stop", 202)
            say("fork")
            forks = await asyncio.gather(*(here.do(source, "fork", 202, {"name": f"fork-{n}"}) for n in range(3)))
            for fork in forks:
                ack(fork, "one\\n")
            say("pause")
            await here.do(forks[0], "pause", 202)
            say("shared")
            checkpoint = (await here.do(forks[0], "pause", 200))["checkpoint"]
            await here.do(forks[0], "resume", 202)
            late = await here.do(forks[0], "fork", 202, {"name": "late", "checkpoint": checkpoint})
            ack(late, "one\\n")
            ack(source, "one\\n", "two\\n")  # while the change is not answered, both are right; half of it never is
            say("start")
            await here.do(source, "start?wait=true", 202)
            await here.sh(source, "echo two > /new && mv /new /file")
            ack(source, "two\\n")
            say("live fork")
            live = await here.do(source, "fork", 202, {"name": "live"})
            ack(live, "two\\n")
            say("slow stop")
            await here.sh(live, "(trap '' TERM; while :; do sleep 0.02; done) >/dev/null 2>&1 & sleep 0.05")
            await here.do(live, "stop", 202)
            del wanted[forks[1]["sandbox_id"]]
            say("stop it")
            await here.do(forks[1], "stop", 202)
            say("deletion")
            await here.delete(forks[1])
            say("end")

    asyncio.run(main())
"""


async def killed_within(home: Path, step: str) -> dict[str, Any]:
    """Have a process with a server in it killed within a step or soon after it; what it had acknowledged by then."""
    command = [sys.executable, "-c", textwrap.dedent(LIFE), str(home)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            said, wanted = json.loads(line)
            if said == step:
                await asyncio.sleep(random.Random(step).random() * 0.05)  # somewhere within the step
                process.kill()
                async for later in process.stdout:  # it may have gone on before it was killed
                    said, wanted = json.loads(later)
                return dict(wanted)
        raise AssertionError(f"it ended before {step!r}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def check_nothing_is_lost_or_left(home: Path, wanted: dict[str, Any]) -> None:
    async with site(home) as here:
        there = {each["sandbox_id"]: each for each in (await here.ask("GET", ""))["sandboxes"]}
        assert set(wanted) <= set(there)
        for one in there.values():
            assert one["status"] in ("stopped", "failed"), one
        for sandbox_id, contents in wanted.items():
            assert there[sandbox_id]["status"] == "stopped", there[sandbox_id]
            fork = await here.do(there[sandbox_id], "fork", 202)
            content = await here.sh(fork, "cat /file")
            assert content in contents
            started = await here.do(there[sandbox_id], "start?wait=true", 202)
            assert (started["status"], started["exit_reason"]) == ("running", None)
            assert await here.sh(started, "cat /file") == content
        names = {info.name for info in await here.server.provider.sandboxes()}
        assert names <= {f"server-{each['sandbox_id']}" for each in (await here.ask("GET", ""))["sandboxes"]}
        for one in there.values():
            if one["parent_id"] is None:
                await here.delete(one, query="?cascade=true")
        assert await here.ask("GET", "") == {"sandboxes": []}
        assert await here.server.provider.sandboxes() == []
        await here.server.provider.sweep()
    assert {**stray_directories(home), "missing": []} == NOTHING
    assert mounts_of(home) == []
    async with asyncio.timeout(100):
        while processes_of(home):
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_server_loses_nothing_and_leaves_nothing(tmp_path: Path, step: str) -> None:
    wanted = await killed_within(tmp_path, step)
    await check_nothing_is_lost_or_left(tmp_path, wanted)


async def test_a_server_that_ends_in_order_seals_what_runs_and_gives_up_what_is_made(tmp_path: Path) -> None:
    async with silence() as registry, site(tmp_path) as here:
        running, paused = await here.create("running"), await here.create("paused")
        await here.sh(running, "(trap 'echo ended > /said; exit' TERM; : > /up; while :; do sleep 0.02; done) & "
                               "while [ ! -e /up ]; do sleep 0.01; done")  # fmt: skip
        await here.do(paused, "pause", 202)
        made = await here.ask("POST", "", 202, {"base_image": registry})
        assert made["status"] == "pending"
    async with site(tmp_path) as here:
        told = {
            each["name"]: (each["status"], each["exit_reason"]) for each in (await here.ask("GET", ""))["sandboxes"]
        }
        assert told == {
            "running": ("stopped", "the server was stopped"),
            "paused": ("stopped", "the server was stopped"),
            made["name"]: ("exited", "it was given up before it ran"),
        }
        await here.do(running, "start?wait=true", 202)
        assert await here.sh(running, "cat /said") == "ended\n"
        for one in (running, paused, made):
            await here.delete(one, query="?cascade=true")


@pytest.mark.parametrize("phase", Phase)
async def test_each_phase_a_server_was_killed_in_is_resolved(tmp_path: Path, phase: Phase) -> None:
    async with site(tmp_path) as here:
        made = await here.create()
        await here.do(made, "stop", 202)
        life = here.life(made)
        here.server.state.table("sandboxes", type(life.record)).set(
            life.id, life.record.model_copy(update={"phase": phase})
        )
    async with site(tmp_path) as here:
        listed = (await here.ask("GET", ""))["sandboxes"]
        if phase is Phase.DELETING:
            assert listed == [] and await here.server.provider.sandboxes() == []
            return
        (one,) = listed
        wanted = {Phase.CREATING: "failed", Phase.FAILED: "failed", Phase.EXITED: "exited"}.get(phase, "stopped")
        assert one["status"] == wanted
        if phase is Phase.CREATING:
            assert "the server ended while it was being made" in one["exit_reason"]
            assert await here.server.provider.sandboxes() == []
            await here.do(made, "start", 409)
        else:
            assert (await here.do(made, "start?wait=true", 202))["status"] == "running"
            await here.do(made, "stop", 202)
        await here.delete(made)


async def test_one_whose_disk_somebody_removed_is_failed_and_can_be_deleted(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        made = await here.create()
        await here.do(made, "stop", 202)
    async with LocalProvider(tmp_path) as provider:
        await (await provider.open(f"server-{made['sandbox_id']}")).close()
    async with site(tmp_path) as here:
        one = await here.get(made)
        assert (one["status"], "its disk is gone" in one["exit_reason"]) == ("failed", True)
        await here.do(made, "fork", 409)
        await here.delete(made)


async def test_an_image_that_takes_long_is_waited_for_in_the_background(tmp_path: Path) -> None:
    async with silence() as registry, site(tmp_path) as here:
        made = await here.ask("POST", "?wait=false", 202, {"base_image": registry})
        assert (made["status"], made["checkpoint"]) == ("pending", None)
        for action in ("pause", "resume", "fork"):
            assert "while it is pending" in (await here.do(made, action, 409))["error"]
        await here.do(made, "timeout", 409, {"timeout": 60})
        await here.delete(made, 409)
        assert (await here.do(made, "start?wait=false", 200))["status"] == "pending"
        stopped = await here.do(made, "stop", 202)
        assert (stopped["status"], stopped["exit_reason"]) == ("exited", "it was given up before it ran")
        await here.delete(made)


@asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """An image of a registry that accepts connections and says nothing."""
    writers = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/image:1"
    finally:
        server.close()
        for writer in writers:
            writer.close()


class Program:
    """`forkyard serve` as a process of its own, over one home, and a client of it."""

    def __init__(self, home: Path) -> None:
        self._env = {**os.environ, "FORKYARD_HOME": str(home)}
        self._key = ""

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forkyard.cli", *arguments,
            env=self._env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    @asynccontextmanager
    async def serving(self, end: int) -> AsyncIterator[httpx2.AsyncClient]:
        """It serves, until it gets the signal `end`."""
        if not self._key:
            made, _ = await (await self._start("key", "create", "tests")).communicate()
            found = re.search(r"ARCHIL_API_KEY=(\S+)", made.decode())
            assert found is not None
            self._key = found[1]
        process = await self._start("serve", "--port", "0")
        assert process.stdout is not None
        try:
            origin = (await process.stdout.readline()).decode().split()[1]
            headers = {"authorization": self._key}
            async with httpx2.AsyncClient(base_url=f"{origin}/api", headers=headers, timeout=30) as client:
                yield client
        finally:
            if process.returncode is None:
                process.send_signal(end)
            await process.communicate()
        assert process.returncode == (0 if end == signal.SIGTERM else -end)


async def _json(answer: httpx2.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()["data"]


@pytest.mark.slow
async def test_the_program_itself_recovers_from_a_kill_amid_concurrent_forks(tmp_path: Path) -> None:
    program = Program(tmp_path)
    acknowledged = []
    async with program.serving(signal.SIGKILL) as client:
        source = await _json(await client.post("/sandboxes?wait=true", json={**HOST, "name": "source"}), 202)
        path = f"/sandboxes/{source['sandbox_id']}"

        async def forks(number: int) -> None:
            for turn in range(1000):
                try:
                    answer = await client.post(f"{path}/fork", json={"name": f"fork-{number}-{turn}"})
                except httpx2.TransportError:
                    return
                acknowledged.append((await _json(answer, 202))["sandbox_id"])

        forking = [asyncio.create_task(forks(number)) for number in range(4)]
        while len(acknowledged) < 12:
            await asyncio.sleep(0.01)
    await asyncio.gather(*forking, return_exceptions=True)
    async with program.serving(signal.SIGTERM) as client:
        listed = (await _json(await client.get("/sandboxes"), 200))["sandboxes"]
        states = {each["sandbox_id"]: each["status"] for each in listed}
        assert {states[each] for each in (*acknowledged, source["sandbox_id"])} == {"stopped"}
        assert set(states.values()) <= {"stopped", "failed"}
        started = await _json(await client.post(f"/sandboxes/{acknowledged[0]}/start?wait=true"), 202)
        assert started["status"] == "running"
    async with program.serving(signal.SIGTERM) as client:
        listed = (await _json(await client.get("/sandboxes"), 200))["sandboxes"]
        assert {each["status"] for each in listed} <= {"stopped", "failed"}
        assert (await client.delete(f"{path}?cascade=true")).status_code == 204
        assert await _json(await client.get("/sandboxes"), 200) == {"sandboxes": []}
    async with LocalProvider(tmp_path) as provider:
        assert await provider.sandboxes() == []
        await provider.sweep()
    assert stray_directories(tmp_path) == NOTHING
