"""The vendor's own Python client on sandboxes: made, forked at once, paused, stopped, and what it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from forkyard.server.address import Address
from forkyard.server.envelope import ApiError
from forkyard.server.sandboxes import Attendant, CreateSandbox, attendants
from forkyard.server.serving import Server

archil = pytest.importorskip("archil", reason="the package archil is not installed (PyPI: archil)")


@pytest_asyncio.fixture(loop_scope="module")
async def client(address: Address, key: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    async with archil.Archil(api_key=key, region="local", base_url=address.origin, s3_base_url=address.origin) as made:
        yield made
        for sandbox in reversed(await made.sandboxes.list.aio()):  # forks first
            await sandbox.stop.aio()
            await sandbox.delete.aio()


@pytest_asyncio.fixture(loop_scope="module")
async def template(client: Any) -> Any:
    return await client.sandboxes.create.aio(name="template", base_image="host", vcpu_count=2, mem_size_mib=1024)


async def refused(status: int, waiting: Any) -> Any:
    with pytest.raises(archil.ArchilApiError) as caught:
        await waiting
    assert caught.value.status == status, caught.value
    return caught.value


async def test_its_fields_arrive(template: Any) -> None:
    assert (template.status, template.name, template.vcpu_count, template.mem_size_mib) == (
        "running", "template", 2, 1024,
    )  # fmt: skip
    assert (template.max_ttl_seconds, template.idle_ttl_seconds, template.max_concurrent_execs) == (86400, 1800, 32)
    assert template.running_at >= template.created_at
    assert template.checkpoint is None and template.endpoints == [] and template.mounts == []


async def test_it_is_told_of_names_that_are_taken_and_of_what_is_not_there(client: Any, template: Any) -> None:
    error = await refused(409, client.sandboxes.create.aio(name="template", base_image="host"))
    assert error.code == "name_taken" and "'template'" in str(error)
    await refused(404, client.sandboxes.get.aio("70d1eaca-0000-0000-0000-000000000000"))
    error = await refused(400, client.sandboxes.create.aio(base_image="host", vcpu_count=99))
    assert "vcpu_count" in str(error)


async def test_it_waits_for_an_image_and_is_told_why_it_failed(client: Any) -> None:
    with pytest.raises(archil.SandboxStartError, match="no-such-image") as caught:
        await client.sandboxes.create.aio(name="failed", base_image="no-such-image:1")
    assert caught.value.latest.status == "failed"


async def test_stop_start_pause_resume_and_timeouts(template: Any) -> None:
    stopped = await template.stop.aio()
    assert stopped.status == "stopped" and stopped.checkpoint
    assert (await stopped.stop.aio()).status == "stopped"
    started = await stopped.start.aio()
    assert started.status == "running"
    paused = await started.pause.aio()
    assert paused.status == "paused"
    assert (await paused.pause.aio()).status == "paused"
    assert (await paused.resume.aio()).status == "running"
    assert (await started.set_timeout.aio(120, idle_ttl_seconds=0)).max_ttl_seconds == 120


async def test_four_forks_at_once_of_a_stopped_source(client: Any, template: Any) -> None:
    await template.stop.aio()
    forks = await asyncio.gather(*(template.fork.aio(name=f"fork-{number}") for number in range(4)))
    assert [(fork.status, fork.name) for fork in forks] == [("running", f"fork-{number}") for number in range(4)]
    assert (await template.refresh.aio()).status == "stopped"
    await template.stop.aio()
    error = await refused(409, template.delete.aio())
    assert "has 4 forks" in str(error)
    for fork in forks:
        await fork.stop.aio()
        await fork.delete.aio()
    await template.delete.aio()
    assert await client.sandboxes.list.aio() == []


@pytest.mark.slow
async def test_many_forks_at_once_of_a_running_source_leave_it_running(client: Any, template: Any) -> None:
    for _ in range(2):
        forks = await asyncio.gather(*(template.fork.aio() for _ in range(8)))
        assert {fork.status for fork in forks} == {"running"}
        assert (await template.refresh.aio()).status == "running"
        deeper = await forks[0].fork.aio()
        assert (deeper.status, (await forks[0].refresh.aio()).status) == ("running", "running")


async def test_a_paused_source_stays_paused(template: Any) -> None:
    await template.pause.aio()
    assert (await template.fork.aio()).status == "running"
    assert (await template.refresh.aio()).status == "paused"


class _Full(Attendant):
    """Has room at the third request."""

    asked = 0

    async def accept(self, asked: CreateSandbox, name: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= 2:
            raise ApiError(503, "no room now", "no_capacity", retry_after=0.1)
        return {}


async def test_it_tries_again_while_there_is_no_room(server: Server, client: Any) -> None:
    full = _Full()
    attendants(server).append(full)
    made = await client.sandboxes.create.aio(name="patient", base_image="host")
    assert (made.status, full.asked) == ("running", 3)
