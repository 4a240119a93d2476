"""Small task directories, plans over them, and a progress that remembers what it was told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forkyard.env.config import AgentConfig, AgentTimeout, HarnessChoice, RuntimeChoice
from forkyard.run import Headline, Plan, Progress
from forkyard.trace import Trace

SOLVE = "#!/bin/bash\necho done > /app/answer.txt\n"
CHECK = """#!/bin/bash
if [ "$(cat /app/answer.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
WAITS = "#!/bin/bash\nsleep $WAIT\necho done > /app/answer.txt\n"
WAITS_TOML = '[solution.env]\nWAIT = "${FORKYARD_TEST_WAIT:-0}"\n'


def write_task(
    root: Path,
    name: str,
    *,
    solve: str | None = SOLVE,
    check: str = CHECK,
    toml: str = "",
    docker: str = "FROM debian:bookworm-slim\nWORKDIR /app\n",
) -> Path:
    """A task directory: the answer is the word done in /app/answer.txt."""
    task = root / name.replace("/", "_")
    files = {
        "task.toml": f'[task]\nname = {json.dumps(f"t/{name}")}\n[environment]\nnetwork_mode = "no-network"\n{toml}',
        "instruction.md": "Write the word done to /app/answer.txt.\n",
        "environment/Dockerfile": docker,
        "tests/test.sh": check,
    }
    if solve is not None:
        files["solution/solve.sh"] = solve
    for place, text in files.items():
        path = task / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return task


def plan_of(tmp_path: Path, **fields: Any) -> Plan:
    """A plan over the tasks in `tmp_path/tasks`, on this machine's /usr; what is an agent's goes to the agent."""
    given = {"paths": (tmp_path / "tasks",), "out": tmp_path / "runs", "run": "r", "base": "host"}
    agent = agent_of(**{name: fields.pop(name) for name in OF_AN_AGENT & fields.keys()})
    return Plan(**{**given, **fields, "agent": agent})


OF_AN_AGENT = {
    "budget",
    "harness",
    "options",
    "provider",
    "model",
    "sampling",
    "max_turns",
    "agent_timeout",
    "verifier",
}


def agent_of(
    harness: str = "oracle",
    options: Mapping[str, Any] | None = None,
    provider: str | None = None,
    agent_timeout: float | None = None,
    **others: Any,
) -> AgentConfig:
    """What every agent of a plan inherits."""
    return AgentConfig(
        harness=HarnessChoice(id=harness, **(options or {})),
        runtime=RuntimeChoice(type=provider),
        timeout=AgentTimeout(rollout=agent_timeout),
        **others,
    )


def lines(directory: Path, name: str = "traces.jsonl") -> list[dict[str, Any]]:
    path = directory / name
    return [json.loads(line) for line in path.read_text().split("\n") if line.strip()] if path.exists() else []


def slots_of(directory: Path) -> list[tuple[str, int]]:
    return sorted((line["task"], line["sample"]) for line in lines(directory))


class Heard(Progress):
    """Everything a run told, in order."""

    def __init__(self, on_phase: Callable[[Trace, str], None] = lambda *_: None) -> None:
        self.headline: Headline | None = None
        self.notes: list[str] = []
        self.phases: list[tuple[str, int, str]] = []
        self.records: list[Mapping[str, Any]] = []
        self.ended: list[int] = []
        self._on_phase = on_phase

    def begin(self, headline: Headline) -> None:
        self.headline = headline

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, trace: Trace, phase: str) -> None:
        self.phases.append((trace.task, trace.slot.sample, phase))
        self._on_phase(trace, phase)

    def finished(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def end(self, played: int, seconds: float, traces: Path) -> None:
        self.ended.append(played)


class Naps:
    """The `sleep` of runs under test: no test waits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def until(condition: Callable[[], bool], seconds: float = 100.0) -> bool:
    """Wait for another process to bring a condition about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def processes_with(marker: str) -> list[int]:
    """The processes, other than this one, whose command line holds the marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
    return found
