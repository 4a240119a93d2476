"""SIGKILL of the runner, the spawner and PID 1 at every step of a sandbox's life, and what is there afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import find_controllers
from tests.support.leftovers import NOTHING, groups_of, mounts_of, processes_of, stray_directories

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 4096
STEPS = ("open", "fork", "run", "push", "stop", "commit", "start", "stop again", "named", "close", "end")

LIFE = """
    import asyncio, sys
    from pathlib import Path
    from forkyard.errors import SandboxError
    from forkyard.sandbox import ImageConfig, SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    CONTENT = bytes(range(256)) * 4096

    async def main(home, name):
        provider = LocalProvider(home)
        boxes = []

        def step(what):
            engine = provider.yard._engine
            live = boxes[-1]._live if boxes else None
            pids = engine._process.pid if engine else 0, live.pid if live else 0
            print(what.replace(" ", "-"), provider.store.engine, *pids, flush=True)

        try:
            step("open")
            kept = await provider.open("kept")
            step("fork")
            boxes.append(await kept.fork())
            step("run")
            await boxes[-1].run("(sleep 98765 &) >/dev/null 2>&1; echo x > /kept; head -c 3000000 /dev/zero > /big")
            step("push")
            await boxes[-1].push(await boxes[-1].pull("/etc"), "/srv/etc")
            await boxes[-1].write("/kept", CONTENT)
            step("stop")
            await boxes[-1].stop()
            step("commit")
            await provider.commit(boxes[-1], "crash-image", ImageConfig())
            step("start")
            await boxes[-1].start()
            step("stop again")
            await boxes[-1].run("sleep 98765 &")
            await boxes[-1].stop()
            boxes.append(await boxes[-1].fork())
            step("named")
            named = await boxes[-1].fork(name=name) if boxes[-1]._live is None else await kept.fork(name=name)
            boxes.append(named)
            await named.write("/kept", CONTENT)
            await named.stop()
            step("close")
            await named.close()
            await boxes[0].close()
            step("end")
        except SandboxError as err:
            print("failed", type(err).__name__, err, flush=True)
        await provider.close()

    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a template and an image in it."""
    home = tmp_path_factory.mktemp("crash-home")
    asyncio.run(_furnish(home))
    return home


async def _furnish(home: Path) -> None:
    async with LocalProvider(home) as provider:
        kept = await provider.create(SandboxSpec(name="kept"))
        await kept.write("/kept", CONTENT)
        await kept.stop()
        await provider.commit(kept, "crash-image", ImageConfig())


class Life:
    """A process that leads the life of a sandbox, and how far it got."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[list[str]] = []

    @classmethod
    async def begin(cls, home: Path, name: str = "named") -> Life:
        command = [sys.executable, "-c", textwrap.dedent(LIFE), str(home), name]
        return cls(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))

    async def reach(self, step: str) -> tuple[int, int]:
        """Wait until a step begins; the process ids of the spawner and of PID 1, 0 for none."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode().split():
            self.said.append(line)
            if line[0] == step.replace(" ", "-"):
                return int(line[2]), int(line[3])
        raise AssertionError(f"it ended before {step!r}: {self.said}")

    @property
    def engine(self) -> str:
        return self.said[0][1]

    async def end(self) -> int:
        assert self.process.stdout is not None
        self.said += [line.decode().split() async for line in self.process.stdout]
        return await self.process.wait()


async def check_whole(home: Path, *engines: str) -> None:
    """A new process sweeps; then nothing is left but what was kept, and that is whole."""
    async with asyncio.timeout(100):
        while processes_of(home, *engines):  # the kernel takes a moment to end them
            await asyncio.sleep(0.01)
    async with LocalProvider(home) as provider:
        await provider.sweep()
        names = {info.name for info in await provider.sandboxes()}
        assert {"kept"} <= names <= {"kept", "named", "other"}
        for name in sorted(filter(None, names)):
            template = await provider.open(name)
            fork = await template.fork()
            assert await fork.read("/kept") == CONTENT, name
            await fork.close()
            if name != "kept":
                await template.close()
        image = await provider.create(SandboxSpec(image="crash-image"))
        assert await image.read("/kept") == CONTENT
        assert (await image.run("test -x /usr/bin/env && echo whole")).stdout == "whole\n"
        await image.close()
    assert stray_directories(home) == NOTHING
    assert groups_of(*engines) == []
    assert mounts_of(home) == []


@pytest.mark.parametrize("victim", ["runner", "spawner", "pid 1"])
@pytest.mark.parametrize("step", STEPS)
async def test_whoever_is_killed_at_whatever_step_nothing_is_left(shared_home: Path, step: str, victim: str) -> None:
    life = await Life.begin(shared_home)
    try:
        spawner, first = await life.reach(step)
        await asyncio.sleep(random.Random(f"{step} {victim}").random() * 0.01)  # somewhere within the step
        target = {"runner": life.process.pid, "spawner": spawner, "pid 1": first}[victim]
        if target:  # there may be none yet
            try:
                os.kill(target, signal.SIGKILL)
            except ProcessLookupError:
                pass
        code = await life.end()
        # whoever is killed late enough has come to its end already
        assert code in ((-signal.SIGKILL, 0) if victim == "runner" else (0,)), life.said
    finally:
        if life.process.returncode is None:
            life.process.kill()
            await life.process.wait()
    await check_whole(shared_home, life.engine)


async def test_one_process_works_on_while_another_is_killed_and_a_third_sweeps(shared_home: Path) -> None:
    steady, doomed = await Life.begin(shared_home, "named"), await Life.begin(shared_home, "other")
    await doomed.reach("stop again")
    doomed.process.kill()
    await doomed.end()
    async with LocalProvider(shared_home) as provider:
        await provider.sweep()
    assert await steady.end() == 0
    assert steady.said[-1][0] == "end", steady.said
    await check_whole(shared_home, steady.engine, doomed.engine)


SEAL = """
    import asyncio, os, sys
    from pathlib import Path
    from forkyard.sandbox import ImageConfig, SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    async def main():
        provider = LocalProvider(Path(sys.argv[1]))
        named = await provider.create(SandboxSpec(image="scratch", name="kept"))
        nameless = await provider.create(SandboxSpec(image="scratch"))
        for word, work in (("named", named.stop), ("nameless", nameless.stop)):
            await asyncio.sleep(0)
            os.write(2, f"begin {word}".encode())
            await work()
            os.write(2, f"end {word}".encode())
        os.write(2, b"begin image")
        await provider.commit(nameless, "sealed", ImageConfig())
        os.write(2, b"end image")
        await provider.close()

    asyncio.run(main())
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed (apt-get install strace)")
def test_what_has_a_name_reaches_the_medium_before_its_row_does_and_nobody_else_waits(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    strace = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=syncfs,pwrite64,fdatasync,fsync,write"]
    command = [*strace, sys.executable, "-c", textwrap.dedent(SEAL), str(tmp_path / "home")]
    subprocess.run(command, check=True, capture_output=True)
    text = log.read_text()

    def calls(word: str) -> list[str]:
        part = text[text.index(f"begin {word}") : text.index(f"end {word}")]
        kinds = {"syncfs": r"syncfs\(.*/disks", "row": r"pwrite64\(.*forkyard.db-wal", "flush": r"f(data)?sync\(.*-wal"}
        found = [name for line in part.splitlines() for name, kind in kinds.items() if re.search(kind, line)]
        return [name for name, _ in itertools.groupby(found)]

    assert calls("named") == ["syncfs", "row", "flush"]
    assert calls("image") == ["syncfs", "row", "flush"]
    assert calls("nameless") == ["row"]


async def test_a_process_killed_between_a_row_and_its_disk_leaves_no_row_without_one(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as provider:
        boxes = [await provider.create(SandboxSpec(name=f"box-{n}")) for n in range(8)]
        for box in boxes:
            await box.stop()
    script = """
        import asyncio, sys
        from pathlib import Path
        from forkyard.sandbox.local import LocalProvider

        async def main():
            provider = LocalProvider(Path(sys.argv[1]))
            boxes = [await provider.open(f"box-{n}") for n in range(8)]
            print("ready", flush=True)
            for box in boxes:
                await box.close()

        asyncio.run(main())
    """
    for delay in (0.0, 0.001, 0.002, 0.004):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(script), str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        if await process.stdout.readline():
            await asyncio.sleep(delay)
            process.kill()
        await process.wait()
        assert stray_directories(tmp_path)["missing"] == []
    async with LocalProvider(tmp_path) as provider:
        await provider.sweep()
    assert stray_directories(tmp_path) == NOTHING


async def test_a_control_group_still_in_use_when_its_engine_ends_goes_with_a_later_sweep(tmp_path: Path) -> None:
    controllers = find_controllers()
    if not controllers.parents:
        pytest.skip("this user has no control groups here")
    provider = LocalProvider(tmp_path)
    await (await provider.create(SandboxSpec())).close()
    parent = min(controllers.parents)
    left = parent / f"{provider.store.engine}-left"
    left.mkdir()
    async with LocalProvider(tmp_path) as other:
        sleeper = subprocess.Popen(["sleep", "1000"])
        try:
            (left / "cgroup.procs").write_text(str(sleeper.pid))
            await provider.close()
            await other.sweep()
            assert left.exists()
        finally:
            sleeper.kill()
            sleeper.wait()
        assert f"control group {left.name}" in await other.sweep()
        assert not left.exists()
    assert stray_directories(tmp_path) == NOTHING
