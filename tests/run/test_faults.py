"""Whatever call to a provider fails, every planned rollout leaves exactly one line and no sandbox stays."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from forkyard.errors import EngineLost, ProviderLost, SandboxError
from forkyard.run import resume, start
from forkyard.run.images import Images
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_task
from tests.run.parts import Heard, Naps, lines, plan_of, slots_of, write_task
from tests.support.faults import FaultyProvider

SLOTS = [("t/a", 0)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "error"), [("shared", SandboxError), ("forked", EngineLost)])
async def test_a_fault_at_any_call_costs_no_line_and_leaves_no_sandbox(
    tmp_path: Path, home: Path, mode: str, error: type[SandboxError]
) -> None:
    for n in itertools.count(1):
        here, run = tmp_path / str(n), tmp_path / str(n) / "runs" / "r"
        # Another directory each time, so that the image is built in each run.
        write_task(here / "tasks", "a", docker=f"FROM debian:bookworm-slim\nWORKDIR /app\nWORKDIR /{mode}{n}\n")
        provider = FaultyProvider(LocalProvider(home), n, error)
        plan = plan_of(here, retries=0, verifier=mode)
        try:
            outcome = await start(plan, Heard(), provider=provider, sleep=Naps())
        except SandboxError as err:
            assert "fault injected" in str(err) and not run.exists(), provider.calls[n - 1]
            continue
        call = provider.calls[n - 1] if provider.count >= n else "none"
        records = lines(run)
        assert slots_of(run) == SLOTS, call
        assert (records[0]["status"] == "INFRASTRUCTURE_ERROR") == bool(outcome.errored), call
        async with LocalProvider(home) as later:
            assert await later.sandboxes() == [], call
        if provider.count < n:
            assert [line["reward"] for line in records] == [1]
            break
        if outcome.errored:
            await resume(run, Heard(), provider=LocalProvider(home), sleep=Naps())
            assert slots_of(run) == SLOTS and all(line["status"] != "INFRASTRUCTURE_ERROR" for line in lines(run))
    assert n > 20


async def test_a_run_whose_provider_is_lost_stops_and_the_rest_is_played_later(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan_of(tmp_path, run="warm"), Heard(), provider=LocalProvider(home))
    counting = FaultyProvider(LocalProvider(home), 0)
    await start(plan_of(tmp_path, run="counted", samples=1), Heard(), provider=counting)
    plan = plan_of(tmp_path, samples=9, concurrent=1)
    lost = FaultyProvider(LocalProvider(home), counting.calls.index("create") + 1, ProviderLost)
    outcome = await start(plan, Heard(), provider=lost, sleep=Naps())
    assert (outcome.planned, outcome.recorded) == (9, 1) and "fault injected" in str(outcome.stopped)
    assert outcome.resume_command == f"forkyard resume {tmp_path / 'runs' / 'r'}"
    (line,) = lines(tmp_path / "runs" / "r")
    assert line["status"] == "INFRASTRUCTURE_ERROR" and "earlier_attempts" not in line["info"]
    done = await resume(tmp_path / "runs" / "r", Heard(), provider=LocalProvider(home), sleep=Naps())
    assert (done.recorded, done.stopped) == (9, None)
    assert [line["reward"] for line in lines(tmp_path / "runs" / "r")] == [1.0] * 9


async def test_an_image_is_looked_for_again_once_the_provider_is_there_again(tmp_path: Path, home: Path) -> None:
    task = load_task(write_task(tmp_path / "tasks", "a"))
    counting = FaultyProvider(LocalProvider(home), 0)
    images = Images(counting, "host")
    await images.image_for(task)
    at = next(n for n in range(1, counting.count + 1) if counting.calls[n - 1] in ("image", "create"))
    faulty = FaultyProvider(LocalProvider(home), at, ProviderLost)
    task = load_task(write_task(tmp_path / "others", "a", docker="FROM debian:bookworm-slim\nWORKDIR /app\nRUN true\n"))
    images_later = Images(faulty, "host")
    try:
        with pytest.raises(ProviderLost):
            await images_later.image_for(task)
        assert await images_later.image_for(task)
    finally:
        for each in (images, images_later):
            await each.close()
        for provider in (counting, faulty):
            await provider.close()


async def test_a_fault_in_one_of_several_rollouts_spares_the_others(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan_of(tmp_path, run="warm"), Heard(), provider=LocalProvider(home))
    provider = FaultyProvider(LocalProvider(home), 30)
    await start(plan_of(tmp_path, samples=5, concurrent=3, retries=0), Heard(), provider=provider)
    records = lines(tmp_path / "runs" / "r")
    assert len(records) == 5 and provider.count > 30
    assert sum(line["reward"] == 1 for line in records) >= 4
    failed = [line["status"] for line in records if line["reward"] != 1]
    assert all(status in ("SCORED", "INDETERMINATE", "INFRASTRUCTURE_ERROR") for status in failed)
