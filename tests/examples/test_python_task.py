"""The example of a Python task, run as its page says, and the env that the page shows."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forkyard as vf
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_taskset

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


class Try(vf.Task):
    @vf.reward
    async def second(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("grep -qx again /app/try")).ok)


class Again(vf.Harness):
    """Succeeds at its second try."""

    needs_model = False

    def __init__(self) -> None:
        self.tries = iter(("once", "again", "too often"))

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await runtime.write("/app/try", f"{next(self.tries)}\n".encode())


def test_the_script_prints_what_its_page_shows(home: Path) -> None:
    shown = re.search(r"python_task\.py\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "python_task.py"],
        env={**os.environ, "FORKYARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert shown and (done.returncode, done.stdout, done.stderr) == (0, shown[1], "")


def test_the_command_line_finds_the_tasks_of_the_script_and_of_its_page() -> None:
    (task,) = load_taskset(ROOT / "examples/python_task.py")
    assert (task.name, task.network) == ("answer", None)
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"vf": vf, "itertools": itertools, "Answer": type(task)}
    exec(code, names)
    assert [task.name for task in names["Sums"]().take(2)] == ["sum-0", "sum-1"]


async def test_the_env_of_the_page_leaves_a_trace_for_each_rollout(local: LocalProvider) -> None:
    _, code, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"vf": vf}
    exec(code, names)

    async def image_for(task: vf.Task) -> str:
        return "host"

    config = vf.Seat(Again(), local, image_for)
    episode = await names["SecondTry"]().run_episode(Try(vf.TaskData(name="try")), vf.Slot(), {"agent": config})
    assert [(trace.status, trace.reward) for trace in episode.traces] == [("SCORED", 0.0), ("SCORED", 1.0)]
    assert {(trace.slot.env, trace.slot.episode) for trace in episode.traces} == {("second-try", episode.id)}
