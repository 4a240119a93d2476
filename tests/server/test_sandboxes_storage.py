"""What a sandbox may write to its disk: what it asks for, or a share of what is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.client import Client
from forkyard.sandbox.local import LocalProvider
from forkyard.server.serving import opened
from forkyard.server.storage import LEAST, MOST, default_storage_mib
from tests.server.sandboxing import site

FILLS = "head -c {}M /dev/zero > /big; sleep 1000"


def test_a_sandbox_that_writes_more_than_it_may_is_ended_and_forks_inherit_the_bound(tmp_path: Path) -> None:
    with Client(home=tmp_path) as client:
        box = client.create_sandbox(storage_mib=64)
        assert box.facts.storage_mib == 64
        box.exec("head -c 40M /dev/zero > /kept")
        same, more = box.fork(), box.fork(storage_mib=4096)
        assert (same.facts.storage_mib, more.facts.storage_mib) == (64, 4096)
        for bounded in (box, same):
            ended = bounded.exec(FILLS.format(96))
            assert "disk was full" in (ended.exit_reason or ""), ended
        assert more.exec("head -c 96M /dev/zero > /big && stat -c %s /big /kept").stdout == "100663296\n41943040\n"
        more.stop()
        assert more.start().exec("head -c 96M /dev/zero > /again && echo written").stdout == "written\n"
        smaller = more.fork(storage_mib=16)
        assert "disk was full" in (smaller.exec(FILLS.format(32)).exit_reason or "")
        for each in client.list_sandboxes():
            if each.facts.parent_id is None:
                each.delete(cascade=True)


async def test_who_asks_for_nothing_has_the_servers_bound(tmp_path: Path, local: LocalProvider) -> None:
    async with site(tmp_path, local) as here:
        assert here.server.storage_mib == default_storage_mib(tmp_path)
        made = await here.create()
        assert made["storage_mib"] == here.server.storage_mib and made["enforced"]["storage_mib"]
        assert here.life(made).record.limits.disk_mb == here.server.storage_mib
        await here.ask("POST", "", 400, {"base_image": "host", "storage_mib": 1})
        await here.delete(made, query="?cascade=true")


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (5000, 5000)])
async def test_a_server_can_be_given_another_bound_or_none(
    given: int, kept: int, tmp_path: Path, local: LocalProvider
) -> None:
    async with opened(tmp_path, local, storage_mib=given) as server:
        assert server.storage_mib == kept


def test_the_default_is_whole_and_within_its_bounds(tmp_path: Path) -> None:
    bound = default_storage_mib(tmp_path / "not" / "there" / "yet")
    assert LEAST <= bound <= MOST and bound % 1024 == 0
