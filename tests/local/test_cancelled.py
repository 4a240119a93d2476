"""A caller that goes away in the middle of a change leaves a sandbox that is in one state or the other, and works."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider

STEPS = range(1, 14)


async def cut_off(work: Awaitable[object], steps: int) -> None:
    """Cancel `work` after so many turns of the event loop."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("steps", STEPS)
async def test_a_cancelled_start_loses_no_template(tmp_path: Path, steps: int) -> None:
    async with LocalProvider(tmp_path) as provider:
        box = await provider.create(SandboxSpec(name="kept"))
        await box.write("/note", b"kept")
        await box.stop()
        await cut_off(box.start(), steps)
        await box.start()
        assert await box.read("/note") == b"kept"
        await box.stop()
        await cut_off(box.start(), steps)
        if steps % 2:  # else it is closed with the provider, in the middle of it
            await box.stop()
    async with LocalProvider(tmp_path) as provider:
        await provider.sweep()
        if steps % 2:
            fork = await (await provider.open("kept")).fork()
            assert await fork.read("/note") == b"kept"


CHANGES: list[tuple[Callable[[Sandbox], Awaitable[object]], Callable[[Sandbox], Awaitable[object]]]] = [
    (lambda box: box.pause(), lambda box: box.resume()),
    (lambda box: box.stop(), lambda box: box.start()),
    (lambda box: box.fork(), lambda box: box.resume()),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_cancelled_change_leaves_a_sandbox_that_works(
    local: LocalProvider, change: tuple[Callable[[Sandbox], Awaitable[object]], Callable[[Sandbox], Awaitable[object]]]
) -> None:
    begin, back = change
    for steps in STEPS:
        box = await local.create(SandboxSpec())
        await cut_off(begin(box), steps)
        await back(box)
        assert (await box.run("echo works", timeout=280)).stdout == "works\n"
        await box.close()
        async with asyncio.timeout(100):
            while any(other.parent == box.id for other in await local.sandboxes()):  # the fork nobody waits for
                await asyncio.sleep(0)


FEW_FILES = """
    import asyncio, resource, sys
    from pathlib import Path
    from forkyard.errors import SandboxError
    from forkyard.sandbox import SandboxSpec
    from forkyard.sandbox.local import LocalProvider

    async def main():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        async with LocalProvider(Path(sys.argv[1])) as provider:
            first = await provider.create(SandboxSpec())
            many = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(40)), return_exceptions=True)
            made = [box for box in many if not isinstance(box, BaseException)]
            refused = [err for err in many if isinstance(err, SandboxError)]
            for box in made:
                await box.close()
            another = await provider.create(SandboxSpec())
            said = [(await box.run("echo works")).stdout for box in (first, another)]
            for err in many:
                if isinstance(err, BaseException) and err not in refused:
                    raise err
            print(len(made) + len(refused), len(made) > 0, len(refused) > 0, *said)

    asyncio.run(main())
"""


def test_without_descriptors_some_are_refused_and_the_others_live(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FEW_FILES), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.split() == ["40", "True", "True", "works", "works"], done.stderr[-2000:]


async def test_a_host_image_whose_making_was_cancelled_is_made_by_who_comes_next(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path) as local:
        for moment in range(12):
            making = asyncio.create_task(local.create(SandboxSpec(image="host")))
            done, _ = await asyncio.wait([making], timeout=moment / 50)
            making.cancel()
            with suppress(asyncio.CancelledError):
                await (await making).close()
            if done:
                break
        box = await local.create(SandboxSpec(image="host"))
        assert (await box.run("echo up")).stdout == "up\n"
