"""Limits of a task from its task.toml to its line: kept, told from failure, and never worth more than failing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.run import start
from forkyard.sandbox import Feature
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.local.cgroups import Controllers
from tests.run.parts import CHECK, SOLVE, Heard, lines, plan_of, write_task

HOG = "head -c 400000000 /dev/zero | tail > /dev/null"
FILL = "head -c 300000000 /dev/zero > /full; sleep 60"
needs_memory = pytest.mark.skipif(
    Feature.LIMIT_MEMORY not in LocalProvider().features, reason="needs control groups for memory"
)


async def played(tmp_path: Path, home: Path, toml: str, solve: str = SOLVE, check: str = CHECK) -> dict[str, Any]:
    write_task(tmp_path / "tasks", "one", toml=toml, solve=solve, check=check)
    await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    (record,) = lines(tmp_path / "runs" / "r")
    return record


@needs_memory
async def test_a_solution_that_fills_the_memory_is_graded_and_says_so(tmp_path: Path, home: Path) -> None:
    record = await played(
        tmp_path, home, "memory_mb = 64\n", solve=f"#!/bin/bash\n{HOG} && echo done > /app/answer.txt\n"
    )
    assert (record["status"], record["reward"]) == ("SCORED", 0.0)
    assert record["info"]["oracle"]["ended_by"] == "oom"


@needs_memory
async def test_a_verifier_that_fills_the_memory_gives_no_reward_and_no_second_try(tmp_path: Path, home: Path) -> None:
    record = await played(tmp_path, home, "memory_mb = 64\n", check=f"#!/bin/bash\nset -o pipefail\n{HOG}\n")
    assert (record["status"], record["reward"]) == ("INDETERMINATE", None)
    assert record["verifier"]["ended_by"] == "oom"
    assert "the sandbox's memory was full" in record["reason"]


async def test_a_solution_that_fills_the_disk_is_graded_and_says_so(tmp_path: Path, home: Path) -> None:
    record = await played(tmp_path, home, "storage_mb = 40\n", solve=f"#!/bin/bash\n{FILL}\n")
    assert record["status"] != "INFRASTRUCTURE_ERROR"
    assert not record["reward"]
    assert record["info"]["oracle"]["ended_by"] == "disk"


async def test_what_the_agent_wrote_does_not_count_against_a_verifier_in_a_fork(tmp_path: Path, home: Path) -> None:
    solve = f"{SOLVE}head -c 30000000 /dev/zero > /mine\n"
    write_task(
        tmp_path / "tasks", "one", toml="storage_mb = 40\n", solve=solve, check=f"{CHECK}cp /mine /copy; sleep 0.3\n"
    )
    await start(plan_of(tmp_path, verifier="forked"), Heard(), provider=LocalProvider(home))
    (record,) = lines(tmp_path / "runs" / "r")
    assert (record["status"], record["reward"], record["verifier"]["ended_by"]) == ("SCORED", 1.0, None)


async def test_a_task_whose_bounds_cannot_be_kept_is_refused_or_runs_without_when_told_to(
    tmp_path: Path, home: Path
) -> None:
    write_task(tmp_path / "tasks", "one", toml="cpus = 0.5\nmemory_mb = 64\nstorage_mb = 100\n")
    provider = LocalProvider(home)
    provider.yard.controllers = Controllers()
    heard = Heard()
    with pytest.raises(
        ConfigError, match=r"(?s)one/task.toml, line \d+: environment.cpus = 0.5: .*memory.*--unbounded"
    ):
        await start(plan_of(tmp_path), heard, provider=provider)
    await start(plan_of(tmp_path, unbounded=True), heard, provider=provider)
    (record,) = lines(tmp_path / "runs" / "r")
    assert record["reward"] == 1.0
    assert [
        note for note in heard.notes if "cannot bound a sandbox's processor time and memory on this machine" in note
    ]


async def test_a_bound_too_small_to_be_one_is_said_before_anything_starts(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "one", toml="cpus = 0.001\n")
    with pytest.raises(Exception, match="limits.cpus = 0.001 must be a number of at least 0.01"):
        await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    assert not (tmp_path / "runs" / "r").exists()
