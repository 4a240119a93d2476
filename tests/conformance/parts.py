"""Task directories of the conformance rows, and how they are played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forkyard as vf
from forkyard.env import SingleAgentEnv
from forkyard.sandbox import Provider
from forkyard.task import DirectoryTask, load_task
from tests.env.parts import Commands, play, seat

HEAD = '[task]\nname = "conformance/row"\n[environment]\ndocker_image = "host"\nworkdir = "/app"\n'
PASSES = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def write(root: Path, toml: str = HEAD, test: str = PASSES, files: Mapping[str, str] | None = None) -> Path:
    """A task directory at `root`."""
    said = {"task.toml": toml, "instruction.md": "Do it.\n", "tests/test.sh": test, **(files or {})}
    for name, text in said.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def task_of(root: Path, toml: str = HEAD, test: str = PASSES, files: Mapping[str, str] | None = None) -> DirectoryTask:
    return load_task(write(root, toml, test, files), {})


async def played(
    provider: Provider, task: vf.Task, *commands: str, harness: vf.Harness | None = None, **fields: Any
) -> vf.Trace:
    """One rollout by an agent that runs commands."""
    (trace,) = (
        await play(SingleAgentEnv(), task, {"agent": seat(provider, harness or Commands(*commands), **fields)})
    ).traces
    return trace


def manifest_of(kept: Path, trace: vf.Trace) -> dict[str, Any]:
    """The entries of a rollout's manifest of artifacts, by source."""
    return {entry["source"]: entry for entry in json.loads((kept / trace.id / "artifacts/manifest.json").read_text())}
