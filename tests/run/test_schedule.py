from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from forkyard.interrupt import Interrupt
from forkyard.run.images import Images
from forkyard.run.schedule import slots
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.task import Task, TaskData


def tasks(count: int) -> list[Task[Any]]:
    return [Task(TaskData(name=f"t{number}")) for number in range(count)]


def test_the_first_sample_of_every_task_comes_before_the_second() -> None:
    done = {("t1", 0), ("t0", 1)}
    found = [(task.name, sample) for task, sample in slots(tasks(3), 2, done)]
    assert found == [("t0", 0), ("t2", 0), ("t1", 1), ("t2", 1)]


def test_slots_are_made_as_they_are_asked_for() -> None:
    many = slots(tasks(1), 10**12, {("t0", 0)})
    assert [sample for _, sample in itertools.islice(many, 2)] == [1, 2]


async def test_a_task_that_names_nothing_starts_from_the_host_and_both_give_way_to_the_base(tmp_path: Path) -> None:
    plain, named = Task(TaskData(name="a")), Task(TaskData(name="b", image="debian:12"))
    async with LocalProvider(tmp_path) as provider:
        for name in ("debian:12", "other"):
            sandbox = await provider.create(SandboxSpec(image="scratch"))
            await sandbox.stop()
            await provider.commit(sandbox, name, ImageConfig())
        assert await Images(provider, None).image_for(plain) == "host"
        assert await Images(provider, None).image_for(named) == "debian:12"
        assert await Images(provider, "other").image_for(named) == "other"
        assert await Images(provider, "other").image_for(plain) == "other"


async def test_a_cancellation_that_is_no_signal_passes_through() -> None:
    async def interrupted() -> None:
        with Interrupt():
            await asyncio.Event().wait()

    task = asyncio.create_task(interrupted())
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
