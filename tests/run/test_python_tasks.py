"""Tasks of a Python file, played by the command that plays task directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.run import Plan, read_plan, resume, start
from forkyard.sandbox.local import LocalProvider
from tests.run.parts import Heard, lines, plan_of, slots_of, write_task

SOURCE = (Path(__file__).parent / "python_tasks.py").read_text()
AGENT = "tests.run.python_tasks:Calculator"


def plan_over(tmp_path: Path, name: str = "", **fields: object) -> Plan:
    file = tmp_path / "questions.py"
    if not file.exists():
        file.write_text(SOURCE)
    given = {"paths": (Path(f"{file}{name}"),), "harness": AGENT, "base": None, **fields}
    return plan_of(tmp_path, **given)


async def test_python_tasks_leave_the_same_record(tmp_path: Path, home: Path) -> None:
    heard = Heard()
    outcome = await start(plan_over(tmp_path, samples=2), heard, provider=LocalProvider(home))
    run = tmp_path / "runs/r"
    assert (outcome.planned, outcome.played, outcome.errored) == (4, 4, 0)
    assert slots_of(run) == [("product", 0), ("product", 1), ("sum", 0), ("sum", 1)]
    assert {(line["status"], line["reward"], line["verifier"]["mode"]) for line in lines(run)} == {
        ("SCORED", 1.0, "forked")
    }
    plan = read_plan(run)
    assert {line["task_digest"] for line in lines(run)} == {task.digest for task in plan.tasks.values()}


async def test_a_run_over_python_tasks_goes_on_from_anywhere(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_over(tmp_path, ":Questions", samples=2)
    monkeypatch.chdir(tmp_path)
    relative = plan.model_copy(update={"paths": (Path("questions.py:Questions"),)})
    await start(relative, Heard(), provider=LocalProvider(home))
    traces = tmp_path / "runs/r/traces.jsonl"
    kept = traces.read_bytes().splitlines(keepends=True)[:1]
    traces.write_bytes(b"".join(kept))
    monkeypatch.chdir(home)
    outcome = await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home))
    assert (outcome.played, outcome.recorded) == (3, 4) and traces.read_bytes().startswith(kept[0])


async def test_a_file_that_was_changed_is_another_set_of_tasks(tmp_path: Path, home: Path) -> None:
    plan = plan_over(tmp_path, samples=2)
    await start(plan, Heard(), provider=LocalProvider(home))
    (tmp_path / "runs/r/traces.jsonl").write_bytes(b"")
    (tmp_path / "questions.py").write_text(SOURCE.replace("float((", "0.5 * float(("))
    with pytest.raises(ConfigError, match=r"changed since run r began: 2 tasks, sum, product\n"):
        await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home))
    (tmp_path / "questions.py").write_text(SOURCE)
    assert (await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home))).played == 4


async def test_directories_and_files_are_played_in_one_run(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a", solve="#!/bin/bash\ntrue\n")
    plan = plan_over(tmp_path, harness="nop", base="host")
    both = plan.model_copy(update={"paths": (tmp_path / "tasks", *plan.paths)})
    await start(both, Heard(), provider=LocalProvider(home))
    modes = {(line["task"], line["verifier"]["mode"]) for line in lines(tmp_path / "runs/r")}
    assert modes == {("t/a", "shared"), ("sum", "forked"), ("product", "forked")}


async def test_a_set_without_an_end_needs_a_limit(tmp_path: Path, home: Path) -> None:
    endless = SOURCE + (
        "import itertools\n"
        "class Endless(vf.Taskset):\n"
        "    def load(self):\n"
        "        return (Answer(Question(name=f'q{n}', prompt='1', answer='1')) for n in itertools.count())\n"
    )
    (tmp_path / "questions.py").write_text(endless)
    plan = plan_over(tmp_path, ":Endless", limit=2)
    await start(plan, Heard(), provider=LocalProvider(home))
    assert slots_of(tmp_path / "runs/r") == [("q0", 0), ("q1", 0)]
    (tmp_path / "runs/r/traces.jsonl").write_bytes(b"")
    assert (await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home))).played == 2


async def test_python_tasks_are_checked_before_anything_starts(tmp_path: Path, home: Path) -> None:
    plan = plan_over(tmp_path, harness="oracle")
    with pytest.raises(ConfigError, match=r"for the oracle to run \(2 tasks: sum, product\)"):
        await start(plan, Heard(), provider=LocalProvider(home))
    (tmp_path / "questions.py").write_text(SOURCE.replace("Question(name", "Question(network_allow=(), name"))
    with pytest.raises(ConfigError, match=r"task sum, network_allow of its Question: needs no_network, .*\(2 tasks: "):
        await start(plan_over(tmp_path, provider="subprocess"), Heard())
    assert not (tmp_path / "runs").exists()
