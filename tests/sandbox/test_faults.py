"""The fault injector: counts every call and fails at exactly one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import SandboxError, SandboxLost
from forkyard.sandbox import ImageConfig, Provider, Sandbox, SandboxSpec
from forkyard.sandbox.contract import Outcome, checks, run_check
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from tests.support.faults import FaultyProvider

CALLS = [
    "create",
    "write",
    "run",
    "read",
    "pull",
    "push",
    "stop",
    "open",
    "fork",
    "sandboxes",
    "sweep",
    "start",
    "close",
]


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[SubprocessProvider]:
    async with SubprocessProvider(tmp_path) as provider:
        yield provider


async def _program(provider: Provider) -> None:
    """Makes every call of `CALLS` once, and closes all it made."""
    box = await provider.create(SandboxSpec(name="box"))
    await box.write("file", b"content")
    assert (await box.run("cat file")).stdout == "content"
    assert await box.read("file") == b"content"
    await box.push(await box.pull("file"), "copy")
    await box.stop()
    same = await provider.open("box")
    fork = await same.fork()
    assert len(await provider.sandboxes()) == 2
    assert await provider.sweep() == []
    await same.start()
    await fork.close()
    await box.close()


async def test_without_a_fault_everything_works_and_is_counted(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=0)
    await _program(faulty)
    assert faulty.count == len(faulty.calls) == 14
    assert faulty.calls == [*CALLS, "close"]
    assert (faulty.name, faulty.features) == (inner.name, inner.features)


@pytest.mark.parametrize("number", range(1, 15))
async def test_the_nth_call_fails_and_no_other(number: int, inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=number)
    call = [*CALLS, "close"][number - 1]
    with pytest.raises(SandboxError, match=f"fault injected at call {number}: {call}"):
        await _program(faulty)
    assert faulty.count == number


async def test_a_fault_past_the_last_call_never_comes(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=15)
    await _program(faulty)
    assert faulty.count == 14


async def test_the_error_is_the_one_asked_for(inner: SubprocessProvider) -> None:
    with pytest.raises(SandboxLost):
        await FaultyProvider(inner, 1, SandboxLost).create(SandboxSpec())
    with pytest.raises(TimeoutError):
        await FaultyProvider(inner, 1, lambda message: TimeoutError(message)).create(SandboxSpec())


async def test_a_call_that_fails_does_nothing_and_a_second_close_works(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=2)
    box = await faulty.create(SandboxSpec())
    with pytest.raises(SandboxError, match="close"):
        await box.close()
    assert len(await inner.sandboxes()) == 1
    await box.close()
    assert await inner.sandboxes() == []


async def test_closing_the_provider_fails_like_any_call(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=2)
    await faulty.create(SandboxSpec())
    with pytest.raises(SandboxError, match="close provider"):
        await faulty.close()
    await faulty.close()
    assert await inner.sandboxes() == []


async def test_listen_is_counted_and_passes_its_refusal(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=0)
    box = await faulty.create(SandboxSpec())
    with pytest.raises(SandboxError, match="no network of its own"):
        await box.listen(8000)
    assert faulty.calls == ["create", "listen"]


async def test_images_are_counted_and_forks_and_images_see_the_real_sandbox(local: LocalProvider) -> None:
    faulty = FaultyProvider(local, fail_at=0)
    box = await faulty.create(SandboxSpec(image="scratch"))
    await box.stop()
    await faulty.commit(box, "faulty:1", ImageConfig())
    assert await faulty.image("faulty:1") in await faulty.images()
    await faulty.remove_image("faulty:1")
    await box.close()
    assert faulty.calls == ["create", "stop", "commit", "image", "images", "remove_image", "close"]


async def test_without_a_fault_the_contract_is_kept(inner: SubprocessProvider) -> None:
    faulty = FaultyProvider(inner, fail_at=0)
    assert isinstance(await faulty.create(SandboxSpec()), Sandbox)
    for check in checks():
        if check.topic in ("forks", "life"):
            result = await run_check(check, faulty)
            assert result.outcome is not Outcome.BROKEN, f"{result.name}: {result.message}"
