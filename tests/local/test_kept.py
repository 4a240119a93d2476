"""Disks that the local provider keeps when their sandboxes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError, SandboxError
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.keeping import KeepPolicy, KeepsDisks, keep_policy, told
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.flatten import DEPTH


async def test_a_kept_disk_outlives_its_sandbox_its_process_and_a_sweep(home: Path) -> None:
    async with LocalProvider(home) as local:
        assert isinstance(local, KeepsDisks)
        box = await local.create(SandboxSpec(env={"OPEN": "yes", "SECRET": "no"}, workdir="/app"))
        with pytest.raises(SandboxError, match="must be stopped"):
            await local.keep_disk(box, "mine")
        await box.write("/app/answer", b"done")
        await box.stop()
        await local.keep_disk(box, "mine", ["SECRET"])
        with pytest.raises(ConfigError, match="'mine'"):
            await local.keep_disk(box, "mine")
        await box.close()
        assert await local.sweep() == []
    async with LocalProvider(home) as local:
        assert all(info.name != "mine" for info in await local.sandboxes())
        for _ in range(2):
            fork = await local.from_kept("mine", SandboxSpec(env={"NEW": "1"}))
            said = await fork.run("echo $(cat answer) $OPEN $SECRET $NEW; rm answer")
            assert said.stdout == "done yes 1\n"
            await fork.close()
        await local.prune_kept(KeepPolicy(seconds=0.0))
        with pytest.raises(ConfigError, match="there is no kept disk 'mine'"):
            await local.from_kept("mine", SandboxSpec())
        assert await local.sweep() == []


async def test_pruning_takes_nothing_from_who_stands_on_a_kept_disk(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    await box.write("/answer", b"done")
    await box.stop()
    await local.keep_disk(box, "shared")
    fork = await local.from_kept("shared", SandboxSpec())
    await box.close()
    assert "shared" in [disk.name for disk in await local.prune_kept(KeepPolicy(seconds=0.0))]
    assert await fork.read("/answer") == b"done"
    await fork.close()


async def test_what_a_kept_disk_shares_is_not_said_to_be_somebody_s_own(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    await box.write("/big", bytes(1 << 20))
    await box.stop()
    before = next(use for use in await local.usage() if use.id == box.id)
    await local.keep_disk(box, "big")
    after = next(use for use in await local.usage() if use.id == box.id)
    assert before.own > 1 << 20 and (after.own, after.shared) == (0, before.own + before.shared)
    await box.close()
    await local.prune_kept(KeepPolicy(total=0.0))
    assert await local.kept_disks() == []


async def test_the_disk_of_a_deep_fork_is_kept_whole(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    for number in range(DEPTH + 2):
        await box.write(f"/file-{number}", str(number).encode())
        await box.stop()
        before, box = box, await box.fork()
        await before.close()
    await box.stop()
    await local.keep_disk(box, "deep")
    await box.close()
    fork = await local.from_kept("deep", SandboxSpec())
    assert [await fork.read(f"/file-{number}") for number in (0, DEPTH + 1)] == [b"0", str(DEPTH + 1).encode()]
    await fork.close()
    await local.prune_kept(KeepPolicy(seconds=0.0))


async def test_more_than_may_be_kept_go_oldest_first(local: LocalProvider) -> None:
    box = await local.create(SandboxSpec())
    await box.stop()
    for name in ("first", "second", "third"):
        await local.keep_disk(box, name)
    assert [disk.name for disk in await local.prune_kept(KeepPolicy(most=2))] == ["first"]
    assert [disk.name for disk in await local.kept_disks()] == ["second", "third"]
    assert [disk.name for disk in await local.prune_kept(KeepPolicy(most=0))] == ["second", "third"]
    await box.close()


def test_the_policy_is_told_and_its_numbers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told([], keep_policy()) == "0 disks of rollouts, 0.0 MB (for 7 days, 10 GB and 20,000 of them at most)"
    monkeypatch.setenv("FORKYARD_KEEP_DAYS", "0.5")
    assert keep_policy().seconds == 43200 and keep_policy().keeps
    for wrong in ("-1", "nan", "week"):
        monkeypatch.setenv("FORKYARD_KEEP_DAYS", wrong)
        with pytest.raises(ConfigError, match=f"FORKYARD_KEEP_DAYS={wrong}"):
            keep_policy()
