"""What a policy or a sweep would have go: when it does, and that no dry run touches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import SandboxError
from forkyard.run import Regrade, check, check_regrade, regrade, start
from forkyard.run.prepare import prepared, resolved
from forkyard.sandbox.keeping import KeepPolicy, KeptDisk
from forkyard.sandbox.local import LocalProvider
from tests.run.parts import Heard, lines, plan_of, write_task


class Stuck(LocalProvider):
    """Cannot let go of a disk."""

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        raise SandboxError("the disk is read-only")


async def test_that_disks_cannot_be_pruned_is_a_note_and_the_run_goes_on(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    heard = Heard()
    await start(plan_of(tmp_path, verifier="forked"), heard, provider=Stuck(home))
    assert [line["reward"] for line in lines(tmp_path / "runs/r")] == [1.0]
    assert "kept disks that are due to go could not be removed: the disk is read-only" in heard.notes


class Watched(LocalProvider):
    """Remembers when it was told to remove something."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.removals: list[str] = []

    async def sweep(self) -> list[str]:
        self.removals.append("swept")
        return await super().sweep()

    async def prune_kept(self, policy: KeepPolicy) -> list[KeptDisk]:
        self.removals.append("pruned")
        return await super().prune_kept(policy)


async def test_only_a_run_that_is_played_removes_what_others_left(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    plan = plan_of(tmp_path, verifier="forked")
    looking, playing = Watched(home), Watched(home)
    async with prepared(resolved(plan), looking):
        pass
    await start(plan, Heard(), provider=playing)
    assert looking.removals == [] and playing.removals[:2] == ["swept", "pruned"]


async def test_disks_that_are_due_to_go_outlive_dry_runs_and_are_graded_while_they_are_there(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a")
    monkeypatch.setenv("FORKYARD_HOME", str(home))
    await start(plan_of(tmp_path, verifier="forked"), Heard(), provider=LocalProvider(home))
    source = tmp_path / "runs/r"
    (line,) = lines(source)
    monkeypatch.setenv("FORKYARD_KEEP_DAYS", "0.000000001")
    wanted = Regrade(source=source, out=tmp_path / "runs", run="again")
    await check(plan_of(tmp_path, run="other"))
    plan, notes = await check_regrade(wanted)
    assert (plan.regraded, notes) == ({"t/a": (0,)}, ())
    async with LocalProvider(home) as local:
        assert line["id"] in [disk.name for disk in await local.kept_disks()]
    await regrade(wanted, Heard())
    assert [each["reward"] for each in lines(tmp_path / "runs/again")] == [1.0]
