"""What a provider promises over more than one process: closing, keeping, and sweeping after a dead owner."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.contract.promise import alive_on_host, expect_alive, new_mark
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider

Kind = type[LocalProvider] | type[SubprocessProvider]
OWNER = """
import asyncio, sys
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.registry import make_provider

async def main(name, home, mark):
    provider = make_provider(name, {"home": home})
    kept = await provider.create(SandboxSpec(name="kept"))
    await kept.write("file", b"content")
    await kept.stop()
    await (await provider.create(SandboxSpec())).stop()
    left = await provider.create(SandboxSpec())
    await left.run(f"echo begun; setsid sleep {mark} & sleep {mark}", on_output=lambda *_: print("begun", flush=True))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=[LocalProvider, SubprocessProvider], ids=["local", "subprocess"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


async def _gone(mark: str) -> bool:
    for _ in range(2000):
        if not alive_on_host(mark):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_leaving_a_provider_ends_what_runs_and_keeps_stopped_sandboxes_with_a_name(
    kind: Kind, home: Path
) -> None:
    mark = new_mark()
    async with kind(home / "life") as provider:
        kept = await provider.create(SandboxSpec(name="kept"))
        await kept.write("file", b"content")
        await kept.stop()
        await (await provider.create(SandboxSpec())).stop()
        running = await provider.create(SandboxSpec(name="running"))
        await running.run(f"setsid sleep {mark} >/dev/null 2>&1 &", timeout=20)
        await expect_alive(running, mark, "a detached process")
    assert await _gone(mark)
    async with kind(home / "life") as provider:
        assert [(info.id, info.state) for info in await provider.sandboxes()] == [(kept.id, "stopped")]
        again = await provider.open("kept")
        await again.start()
        assert await again.read("file") == b"content"
        await again.close()
        with pytest.raises(ConfigError, match="kept"):
            await provider.open("kept")
        assert not await provider.sandboxes()


async def test_sweeping_removes_what_a_killed_owner_left(kind: Kind, home: Path) -> None:
    mark = new_mark()
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, kind.name, str(home / "sweep"), mark, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout
    assert await owner.stdout.readline() == b"begun\n"
    async with kind(home / "sweep") as provider:
        assert await provider.sweep() == [], "nothing is swept while the owner lives"
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
        assert len(await provider.sweep()) >= 1
        assert await _gone(mark)
        assert [info.name for info in await provider.sandboxes()] == ["kept"]
        kept = await provider.open("kept")
        await kept.start()
        assert await kept.read("file") == b"content"
        await kept.close()


async def test_a_name_is_taken_for_every_provider_over_the_same_home(kind: Kind, home: Path) -> None:
    async with kind(home / "names") as one, kind(home / "names") as two:
        box = await one.create(SandboxSpec(name="mine"))
        with pytest.raises(ConfigError, match="mine"):
            await two.create(SandboxSpec(name="mine"))
        assert [info.id for info in await two.sandboxes()] == [box.id]
        await box.close()
