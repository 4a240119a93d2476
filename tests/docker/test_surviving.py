"""Sandboxes that outlive the process that runs them: killed or not, they are there, stopped, with their disk."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.dockerd import Docker
from forkyard.errors import ConfigError
from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.docker import DockerProvider
from tests.docker.parts import BASE, containers, nameless_images

OWNER = """
import asyncio, pathlib, sys
from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.docker import DockerProvider

async def main():
    provider = DockerProvider(pathlib.Path(sys.argv[1]), sys.argv[2])
    running = await provider.create(SandboxSpec("base:1", survives=True, limits=Limits(pids=64)))
    await running.run("echo one > /file; echo 192.0.2.7 seven >> /etc/hosts; sleep 1000 > /dev/null 2>&1 &")
    fork = await running.fork()
    await fork.run("echo two >> /file")
    lost = await provider.create(SandboxSpec("base:1"))
    print(running.id, fork.id, lost.id, flush=True)
    if sys.argv[3] == "close":
        await provider.close()
    else:
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "close"])
async def test_one_whose_owner_has_ended_is_stopped_and_has_its_disk(engine: Docker, tmp_path: Path, end: str) -> None:
    before = set(nameless_images(engine))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path), engine.address, end, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    running, fork, lost = (await process.stdout.readline()).decode().split()
    if end == "kill":
        process.kill()
    assert await process.wait() == (-signal.SIGKILL if end == "kill" else 0)
    async with DockerProvider(tmp_path, engine.address) as provider:
        await provider.sweep()
        assert {info.id for info in await provider.sandboxes()} == {running, fork}
        with pytest.raises(ConfigError, match=lost):
            await provider.open(lost)
        for one, content in ((running, b"one\n"), (fork, b"one\ntwo\n")):
            box = await provider.open(one)
            copy = await box.fork()
            await box.start()
            for each in (box, copy):
                assert await each.read("/file") == content
                assert (await each.read("/etc/hosts")).endswith(b"seven\n")
                await each.close()
        await provider.sweep()
    assert [each["Id"] for each in containers(engine) if each["Id"] in (running, fork, lost)] == []
    assert set(nameless_images(engine)) <= before


@pytest.mark.slow
async def test_what_another_process_runs_is_not_taken_over(engine: Docker, tmp_path: Path) -> None:
    async with DockerProvider(tmp_path, engine.address) as one, DockerProvider(tmp_path, engine.address) as other:
        box = await one.create(SandboxSpec(BASE, survives=True, limits=Limits(pids=64)))
        with pytest.raises(ConfigError, match="is running"):
            await other.open(box.id)
        await other.sweep()
        assert [info.state for info in await other.sandboxes()] == ["running"]
        await box.close()
