"""Kept disks that a policy would have go."""

from __future__ import annotations

from pathlib import Path

from forkyard.errors import SandboxError
from forkyard.run import start
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
