"""The commands of docs/running.md, run in their order as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from forkyard.run import read_plan
from tests.cli.forkyard import Forkyard
from tests.run.parts import lines

PAGE = (Path(__file__).parents[1] / "docs" / "running.md").read_text()


@pytest.fixture
def forkyard(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Forkyard:
    return Forkyard(tmp_path, home, monkeypatch, capfd)


def test_the_commands_of_the_page_work_in_their_order(forkyard: Forkyard, tmp_path: Path) -> None:
    (tmp_path / "eval.toml").write_text(*re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    commands = [
        line.removeprefix("$ forkyard ")
        for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(commands) >= 8
    for command in commands:
        done = forkyard(*shlex.split(command))
        assert (done.returncode, done.stderr) == (0, ""), command
    assert {line["reward"] for line in lines(tmp_path / "runs/first")} == {1.0}
    kept = tmp_path / "runs/kept"
    assert len(lines(kept)) == 4 and read_plan(kept).env_config["agent"]["max_turns"] == 20
    assert len({line["task"] for line in lines(kept)}) == 1
    refused = forkyard("replay", "runs/before")
    assert refused.returncode == 1 and "need a sandbox" in refused.stderr
