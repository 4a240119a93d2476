from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forkyard.errors import ConfigError, HarnessError
from forkyard.harness import CodexHarness, Equipment, NopHarness
from forkyard.run import start
from forkyard.run.equipping import equipped, prune_equipped
from forkyard.run.images import ImageError, Images
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.task import Task, TaskData
from tests.run.parts import Heard, plan_of, write_task
from tests.support.images import said


class Tool(NopHarness):
    """A harness that needs a file, and counts how often it was put there."""

    def __init__(self, what: str = "tool 1", install: Callable[[Sandbox], Awaitable[None]] | None = None) -> None:
        self.installed: list[Sandbox] = []
        self._equipment = Equipment(what, install or self._install)

    def equipment(self) -> Equipment:
        return self._equipment

    async def _install(self, sandbox: Sandbox) -> None:
        self.installed.append(sandbox)
        await sandbox.write("/opt/forkyard/tool", b"tool")


def task(name: str = "t", image: str | None = None) -> Task[TaskData]:
    return Task(TaskData(name=name, image=image))


async def test_it_is_installed_once_for_all_rollouts_of_all_tasks(local: LocalProvider) -> None:
    tool, images = Tool("tool once"), Images(local, None)
    names = await asyncio.gather(*(images.for_harness(tool)(task(name)) for name in ("a", "b", "a")))
    assert len(set(names)) == 1 and len(tool.installed) == 1
    assert await said(local, names[0], "cat /opt/forkyard/tool") == "tool"
    assert await said(local, "host", "ls /opt") == ""


async def test_later_runs_find_it_again(home: Path) -> None:
    tools = Tool("tool again"), Tool("tool again"), Tool("tool of another version")
    names = []
    for tool in tools:
        async with LocalProvider(home) as provider:
            names.append(await Images(provider, "host").for_harness(tool)(task()))
    assert [len(tool.installed) for tool in tools] == [1, 0, 1]
    assert names[0] == names[1] != names[2]


async def test_a_harness_that_needs_nothing_gets_the_image_itself(local: LocalProvider) -> None:
    assert await Images(local, None).for_harness(NopHarness())(task()) == "host"


async def test_the_configuration_of_the_image_is_kept(local: LocalProvider) -> None:
    made = await equipped(local, "host", Tool("tool config").equipment())
    host, image = await local.image("host"), await local.image(made)
    assert host is not None and image is not None and image.config == host.config


async def test_what_cannot_be_installed_is_said_and_tried_once_in_a_run(local: LocalProvider) -> None:
    tried, before = [], await local.images()

    async def fail(sandbox: Sandbox) -> None:
        tried.append(sandbox)
        raise HarnessError("no python")

    image_for = Images(local, None).for_harness(Tool("tool broken", fail))
    for _ in range(2):
        with pytest.raises(ImageError, match="tool broken could not be installed into the image of task t: no python"):
            await image_for(task())
    assert len(tried) == 1
    assert await local.images() == before


async def test_the_task_s_own_image_comes_first(local: LocalProvider) -> None:
    with pytest.raises(ImageError, match="the image of task t could not be had"):
        await Images(local, None).for_harness(Tool())(task(image="none:1"))


async def test_it_is_installed_without_a_network(local: LocalProvider) -> None:
    heard = []

    async def look(sandbox: Sandbox) -> None:
        heard.append((await sandbox.run("cat /proc/net/route | wc -l; id -u; pwd")).stdout.split())

    await equipped(local, "host", Equipment("tool network", look))
    assert heard == [["1", "0", "/"]]


async def test_pruning_forgets_it_unless_it_is_in_use(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "home") as provider:
        name = await equipped(provider, "host", Tool().equipment())
        sandbox = await provider.create(SandboxSpec(image=name))
        assert await prune_equipped(provider) == []
        await sandbox.close()
        assert await prune_equipped(provider) == [f"{name}: made for a harness, and made again when it is needed"]
        assert await provider.image(name) is None


async def test_a_provider_without_images_is_refused() -> None:
    async with SubprocessProvider() as provider:
        with pytest.raises(ConfigError, match="the provider subprocess keeps no images"):
            await Images(provider, None).for_harness(CodexHarness())(task())


async def test_a_run_on_a_provider_without_images_does_not_start(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "write")
    place = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(ConfigError) as caught:
        await start(plan_of(tmp_path, harness="codex", provider="subprocess", **place), Heard())
    assert "the harness codex needs images, which the provider subprocess does not promise" in str(caught.value)
    assert not (tmp_path / "runs").exists()
