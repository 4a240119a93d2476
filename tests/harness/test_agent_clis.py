"""Agent CLIs as rollouts of a run: installed into the task's image, asking through the gateway, and graded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkyard.harness import ClaudeCodeHarness, CodexHarness, Harness, MiniSweAgentHarness
from forkyard.run import start
from forkyard.sandbox.local import LocalProvider
from tests.harness.agents import COMMAND, equipped_or_skip, shared_packages
from tests.harness.parts import roles
from tests.run.parts import Heard, lines, plan_of, write_task
from tests.support.upstream import Turn, Upstream
from tests.support.web import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WRITABLE = "FROM debian:bookworm-slim\nRUN mkdir -m 1777 /app\nWORKDIR /app\n"  # one image, so one installation
KEY = "sk-a-key-that-nobody-inside-may-see"


@pytest.fixture(scope="session")
def home(common_home: Path) -> Path:
    """One for all processes of the test run, so that each CLI is installed once."""
    return common_home


@dataclass(frozen=True)
class Cli:
    """A CLI, how its model says that it is done, and how many replies that takes in all."""

    harness: type[Harness]
    done: Turn = Turn()

    def __str__(self) -> str:
        return self.harness.name


CLIS = [
    Cli(CodexHarness),
    Cli(ClaudeCodeHarness),
    Cli(MiniSweAgentHarness, Turn("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
]
each_cli = pytest.mark.parametrize("cli", CLIS, ids=str)


async def played(
    cli: Cli, upstream: Upstream, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> dict[str, Any]:
    """The line of one rollout whose model is `upstream`, behind the gateway."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    provider = LocalProvider(home)
    await equipped_or_skip(provider, cli.harness())
    async with served(upstream) as port:
        base_url = f"http://127.0.0.1:{port}/v1"
        plan = plan_of(tmp_path, harness=cli.harness.name, model="test-model", base_url=base_url, retries=0, **fields)
        with shared_packages():
            outcome = await start(plan, Heard(), provider=provider)
    assert outcome.directory is not None
    (line,) = lines(outcome.directory)
    assert KEY not in json.dumps(line)
    return line


@each_cli
async def test_a_rollout_is_played_recorded_and_graded(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "write", docker=WRITABLE)
    upstream = Upstream(Turn(COMMAND), cli.done)
    line = await played(cli, upstream, home, tmp_path, monkeypatch)
    assert (line["status"], line["reward"], line["stop"]) == ("SCORED", 1.0, "agent_completed"), line
    assert line["harness"] == cli.harness.name
    assert line["steps"] == 2 == len(line["calls"])
    assert line["usage"]["input"] >= 20
    assert roles(line["messages"])[:3] == ["user", "assistant", "tool"]
    assert upstream.asked()[0]["model"] == "test-model"
    _, _, headers = upstream.heard[-1]
    assert KEY in (headers.get("authorization", "") + headers.get("x-api-key", ""))
    kept = tmp_path / "runs" / "r" / "rollouts" / line["id"] / "agent" / f"{cli.harness.name}.jsonl"
    assert "echo done" in kept.read_text()


@each_cli
async def test_a_refusal_of_the_gateway_is_a_normal_end(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "write", docker=WRITABLE)
    line = await played(cli, Upstream(Turn(COMMAND)), home, tmp_path, monkeypatch, max_turns=1)
    assert (line["status"], line["reward"], line["stop"]) == ("SCORED", 1.0, "max_turns"), line
    assert line["steps"] == 1
    assert line["errors"] == []


@each_cli
async def test_a_model_that_never_answers_is_no_zero(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "write", docker=WRITABLE)
    upstream = Upstream(Turn(status=401, text="no such key"))
    line = await played(cli, upstream, home, tmp_path, monkeypatch)
    assert (line["status"], line["reward"]) == ("INFRASTRUCTURE_ERROR", None), line
    assert cli.harness.name in line["reason"]


@each_cli
@pytest.mark.skipif(os.getuid() != 0, reason="more than one user needs root")
async def test_it_runs_as_the_task_s_agent(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "write", toml='[agent]\nuser = "nobody"\n', docker=WRITABLE)
    upstream = Upstream(Turn("id -un > /app/answer.txt && echo done > /app/answer.txt && id -un"), cli.done)
    line = await played(cli, upstream, home, tmp_path, monkeypatch)
    assert (line["status"], line["reward"]) == ("SCORED", 1.0), line
    assert "nobody" in json.dumps(line["messages"])
