"""The local provider without root: with and without subordinate ids, by the contract and by a whole run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.ordinary_user import CHECKOUT, home_of_the_user, run_as_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
FORKYARD = (sys.executable, "-m", "forkyard.cli")


@pytest.mark.slow
@pytest.mark.parametrize("subordinate_ids", [False, True], ids=["single", "range"])
def test_the_contract_is_kept_for_an_ordinary_user(subordinate_ids: bool) -> None:
    if subordinate_ids and not shutil.which("newuidmap"):
        pytest.skip("newuidmap is not installed (apt-get install uidmap)")
    with home_of_the_user() as home:
        done = run_as_user(*FORKYARD, "check", "provider", "local", home=home, subordinate_ids=subordinate_ids)
        lines = done.stdout.splitlines()
        assert done.returncode == 0, "\n".join(line for line in lines if not line.startswith("kept")) + done.stderr
        assert ("kept          commands_run_as_any_user" in done.stdout) is subordinate_ids


def test_an_ordinary_user_plays_a_task_from_fork_to_record(tmp_path: Path) -> None:
    with home_of_the_user() as home:
        arguments = [
            "run",
            str(CHECKOUT / "examples/tasks/dice-range"),
            "-a",
            "oracle",
            "--base",
            "host",
            "--unbounded",
        ]
        done = run_as_user(*FORKYARD, *arguments, "--out", str(home / "runs"), "--run", "one", home=home)
        assert done.returncode == 0, done.stderr
        record = json.loads((home / "runs/one/traces.jsonl").read_text())
        assert (record["status"], record["reward"]) == ("SCORED", 1.0)
