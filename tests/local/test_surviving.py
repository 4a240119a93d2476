"""Sandboxes that outlive the process that runs them: killed at any moment, they are there, stopped, with their disk."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import Limits, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.values import Feature
from tests.support.leftovers import NOTHING, groups_of, mounts_of, stray_directories

OWNER = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.sandbox import Limits, SandboxSpec
    from forkyard.sandbox.local import LocalProvider
    from forkyard.sandbox.promises import kept

    async def main(home):
        provider = LocalProvider(home)
        spec = SandboxSpec(survives=True, limits=kept(Limits(pids=64, memory_mb=300), provider.features))
        running = await provider.create(spec)
        await running.run("echo one > /file; (while :; do echo x >> /log; done) >/dev/null 2>&1 &")
        fork = await running.fork("fork")
        await fork.run("echo two >> /file")
        again = await running.fork()
        await again.stop()
        await again.start()
        await again.run("echo three >> /file")
        lost = await provider.create(SandboxSpec())
        print(provider.store.engine, running.id, fork.id, again.id, lost.id, flush=True)
        if sys.argv[2] == "close":
            await provider.close()
        else:
            await asyncio.sleep(60)

    asyncio.run(main(Path(sys.argv[1])))
"""


async def _led(home: Path, end: str) -> list[str]:
    """Engine and ids of the sandboxes a process had that was killed, or closed its provider."""
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(home), end]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode().split()
    if end == "kill":
        process.kill()
    assert await process.wait() == (-signal.SIGKILL if end == "kill" else 0)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "close"])
async def test_one_whose_owner_has_ended_is_stopped_and_has_its_disk_and_its_limits(tmp_path: Path, end: str) -> None:
    engine, running, fork, again, lost = await _led(tmp_path, end)
    async with LocalProvider(tmp_path) as provider:
        states = {info.id: info.state for info in await provider.sandboxes()}
        assert {states[one] for one in (running, fork, again)} == {"stopped"}
        await provider.sweep()
        assert {info.id for info in await provider.sandboxes()} == {running, fork, again}
        with pytest.raises(ConfigError, match=lost):
            await provider.open(lost)
        for one, content in ((running, "one\n"), ("fork", "one\ntwo\n"), (again, "one\nthree\n")):
            box = await provider.open(one)
            copy = await box.fork()
            await box.start()
            assert await box.read("/file") == await copy.read("/file") == content.encode()
            assert await box.changes() != []
            if Feature.LIMIT_MEMORY in provider.features:
                assert box.limits == Limits(pids=64, memory_mb=300)  # type: ignore[attr-defined]
            for each in (copy, box):
                await each.close()
        await provider.sweep()
    assert stray_directories(tmp_path) == NOTHING
    assert groups_of(engine) == []
    assert mounts_of(tmp_path) == []


async def test_what_is_running_elsewhere_is_not_taken_over(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as one, LocalProvider(tmp_path) as other:
        box = await one.create(SandboxSpec(image="scratch", survives=True))
        with pytest.raises(ConfigError, match="running in another process"):
            await other.open(box.id)
        await other.sweep()
        assert [info.state for info in await other.sandboxes()] == ["running"]
        await box.close()


async def test_two_that_take_over_at_once_find_one_disk(tmp_path: Path) -> None:
    _, running, *_ = await _led(tmp_path, "kill")
    async with LocalProvider(tmp_path) as one, LocalProvider(tmp_path) as other:
        first, second = await asyncio.gather(one.open(running), other.open(running))
        assert first.box.stack == second.box.stack  # type: ignore[attr-defined]
        assert first.box.own == 1  # type: ignore[attr-defined]
        await first.start()
        assert await first.read("/file") == b"one\n"
        with pytest.raises(ConfigError, match="running in another process"):
            await second.start()
        for box in list(await one.sandboxes()):
            if box.state == "stopped":
                await (await one.open(box.id)).close()
        await first.close()


async def test_unused_ones_are_not_swept_for_their_age(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(SandboxSpec(image="scratch", name="kept", survives=True))
        await box.stop()
        assert await provider.sweep_unused(0.0) == []
        await box.close()
