from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from forkyard.programs import run


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


async def test_a_program_is_run_to_its_end() -> None:
    assert await run(sh("cat; echo no >&2; exit 3"), stdin=b"said\n", seconds=60, keep=100) == (3, b"said\n", b"no\n")
    assert await run(sh('echo "$A"; cat'), env={"A": "a"}, seconds=60, keep=100) == (0, b"a\n", b"")


async def test_of_what_a_program_says_the_end_is_kept() -> None:
    code, out, complaints = await run(sh("seq 100000; seq 100000 >&2; echo end"), seconds=60, keep=10)
    assert (code, out, complaints) == (0, b"00000\nend\n", b"99\n100000\n")


async def test_a_program_may_end_before_it_has_read_what_it_is_given() -> None:
    assert await run(["true"], stdin=b"a" * (1 << 20), seconds=60, keep=10) == (0, b"", b"")


async def test_a_program_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run(["/no/such/program"], seconds=60, keep=10)


async def ended(pid: int) -> bool:
    """Wait until nothing runs as `pid`; a zombie whose parent is gone counts as ended."""
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.01)


async def test_what_a_program_leaves_behind_is_killed_with_its_end() -> None:
    code, out, _ = await run(sh("sleep 1000 & echo $!"), seconds=60, keep=100)
    assert code == 0 and await ended(int(out))


async def test_what_leaves_the_session_of_a_program_delays_nobody(tmp_path: Path) -> None:
    left = f"setsid sh -c 'echo $$ > {tmp_path}/left; exec sleep 1000' &"
    script = f"{left} while ! [ -s {tmp_path}/left ]; do sleep 0.01; done; cat {tmp_path}/left"
    code, out, _ = await run(sh(script), seconds=60, keep=100)
    os.kill(int(out), signal.SIGKILL)
    assert code == 0


async def test_at_its_deadline_the_whole_session_is_killed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await run(sh(f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; wait"), seconds=0.5, keep=10)
    if (child := tmp_path / "child").exists():  # on a machine so slow that it was not started, nothing is left either
        assert not child.read_text() or await ended(int(child.read_text()))


async def test_a_program_whose_caller_is_cancelled_may_end_by_itself_first(tmp_path: Path) -> None:
    script = f"trap 'echo mine > {tmp_path}/last; exit' TERM; echo $$ > {tmp_path}/begun; while :; do sleep 0.01; done"
    running = asyncio.create_task(run(sh(script), seconds=60, keep=10, patience=60))
    begun = tmp_path / "begun"
    while not (begun.exists() and begun.read_text()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "last").read_text() == "mine\n"
    assert await ended(int(begun.read_text()))
