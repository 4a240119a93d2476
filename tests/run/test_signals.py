"""A run that is interrupted or killed leaves nothing running, and is completed by `forkyard resume`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkyard.sandbox.local import LocalProvider
from tests.run.parts import WAITS, WAITS_TOML, lines, processes_with, slots_of, until, write_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLOTS = [("t/quick", 0), ("t/quick", 1), ("t/waits", 0), ("t/waits", 1)]


class Killable:
    """`forkyard run` in a process of its own, over a quick task and one that waits as long as it is told to."""

    def __init__(self, tmp_path: Path, home: Path) -> None:
        self.run = tmp_path / "runs" / "r"
        self.marker = f"90000.{os.getpid()}{abs(hash(str(tmp_path))) % 10**9}"
        self._command = [sys.executable, "-m", "forkyard.cli"]
        self._env = {**os.environ, "FORKYARD_HOME": str(home)}
        write_task(tmp_path / "tasks", "quick")
        write_task(tmp_path / "tasks", "waits", solve=WAITS, toml=WAITS_TOML)
        options = ["--base", "host", "-a", "oracle", "-k", "2", "-n", "3", "--out", str(self.run.parent), "--run", "r"]
        self._start = [*self._command, "run", str(tmp_path / "tasks"), *options]

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        env = {**self._env, "FORKYARD_TEST_WAIT": self.marker}
        process = subprocess.Popen(
            self._start, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def waiting(self) -> bool:
        """Both rollouts that wait are doing so, and both others have ended."""
        return len(processes_with(f"sleep\0{self.marker}")) >= 2 and len(self.lines()) == 2

    def lines(self) -> list[str]:
        path = self.run / "traces.jsonl"
        return [line for line in path.read_text().split("\n") if line] if path.exists() else []

    def nothing_runs(self) -> bool:
        return until(lambda: not processes_with(self.marker))

    def resume(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, "resume", str(self.run)], env=self._env, capture_output=True, text=True, timeout=100
        )


@pytest.fixture
def killable(tmp_path: Path, home: Path) -> Killable:
    return Killable(tmp_path, home)


async def check_completed(killable: Killable, home: Path) -> None:
    resumed = killable.resume()
    assert resumed.returncode == 0, resumed.stderr
    assert slots_of(killable.run) == SLOTS
    assert [line["reward"] for line in lines(killable.run)] == [1.0] * 4
    assert {path.name for path in (killable.run / "rollouts").iterdir()} == {line["id"] for line in lines(killable.run)}
    async with LocalProvider(home) as later:
        assert await later.sandboxes() == []
    again = killable.resume()
    assert again.returncode == 0 and "nothing to do" in again.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_ends_a_run_in_order(killable: Killable, home: Path, number: int, code: int) -> None:
    with killable.started() as process:
        assert until(killable.waiting)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    assert process.returncode == code
    assert err.splitlines()[-1].startswith("forkyard: interrupted; 2 of 4 rollouts are on record")
    assert f"forkyard resume {killable.run}" in err and "Traceback" not in err + out
    assert not processes_with(killable.marker)
    async with LocalProvider(home) as later:
        assert await later.sandboxes() == []
    assert slots_of(killable.run) == SLOTS[:2]
    await check_completed(killable, home)


async def test_the_second_signal_ends_the_process_at_once(killable: Killable, home: Path) -> None:
    with killable.started() as process:
        assert until(killable.waiting)
        process.send_signal(signal.SIGSTOP)  # so that both are there when it goes on
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=100)
    assert process.returncode in (130, 143) and err == ""
    assert killable.nothing_runs()
    await check_completed(killable, home)


async def test_a_signal_while_the_first_sandboxes_come_up_leaves_none(killable: Killable, home: Path) -> None:
    with killable.started() as process:
        assert until((killable.run / "plan.json").exists)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in err
    assert killable.nothing_runs()
    async with LocalProvider(home) as later:
        assert await later.sandboxes() == []
    await check_completed(killable, home)


@pytest.mark.parametrize("moment", ["planned", "one line", "waiting"])
async def test_a_killed_run_is_completed_by_resume(killable: Killable, home: Path, moment: str) -> None:
    moments: dict[str, Callable[[], bool]] = {
        "planned": (killable.run / "plan.json").exists,
        "one line": lambda: len(killable.lines()) >= 1,
        "waiting": killable.waiting,
    }
    with killable.started() as process:
        assert until(moments[moment])
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)
    assert killable.nothing_runs()
    before = killable.lines()
    await check_completed(killable, home)
    assert set(before) <= set(killable.lines())
