"""The page of envs: its programs print what it shows, its code is theirs, its own env plays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forkyard as vf
from forkyard.env import ENVS
from forkyard.sandbox.local import LocalProvider
from tests.env.parts import Commands, play, seat

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "envs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = re.findall(r"```console\n\$ python (\S+)\n(.*?)```", PAGE, re.DOTALL)


def test_every_env_is_on_the_page_with_its_agents() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|", PAGE, re.MULTILINE))
    assert rows == {name: ", ".join(f"`{agent}`" for agent in env().agents) for name, env in ENVS.items()}


def test_every_program_is_shown() -> None:
    assert sorted(path for path, _ in SHOWN) == sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "examples" / "envs").glob("*.py")
    )


@pytest.mark.parametrize(("program", "output"), SHOWN, ids=[Path(path).stem for path, _ in SHOWN])
def test_a_program_prints_what_the_page_shows(program: str, output: str, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / program],
        env={**os.environ, "FORKYARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_code_on_the_page_is_that_of_the_programs() -> None:
    programs = [(ROOT / path).read_text() for path, _ in SHOWN]
    *quoted, own = BLOCKS
    assert [block for block in quoted if not any(block in program for program in programs)] == []
    assert "SecondOpinionEnv" in own


@pytest.mark.parametrize("command", re.findall(r"^\$ forkyard (eval .*)$", PAGE, re.MULTILINE))
def test_a_command_of_the_page_plays(command: str, home: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forkyard.cli", *command.split(), "-o", str(tmp_path)],
        env={**os.environ, "FORKYARD_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (traces,) = tmp_path.glob("*/traces.jsonl")
    lines = [json.loads(line) for line in traces.read_text().splitlines()]
    assert {(line["env"], line["status"]) for line in lines} == {(command.split()[3], "SCORED")}


async def test_the_pages_own_env_plays(local: LocalProvider) -> None:
    names: dict[str, Any] = {"vf": vf}
    exec(compile(BLOCKS[-1], "envs.md", "exec", dont_inherit=True), names)
    task = vf.Task(vf.TaskData(name="page", prompt="Write /app/page."))
    seats = {
        "writer": seat(local, Commands("mkdir /app; echo hi > /app/page")),
        "reviewer": seat(local, Commands("cat /app/page")),
    }
    episode = await play(names["SecondOpinionEnv"](), task, seats)
    assert episode.errors == []
    writer, reviewer = episode.traces
    assert (writer.agent, reviewer.messages[0]["content"]) == ("writer", "hi\n")
