"""What runs in the agent's sandbox when the agent is done, to make evidence ready: in this order

    pre_artifacts.sh   by bash in the working directory; what it writes to /logs/artifacts leaves the sandbox
    model.patch        without such a script: what was changed in a git working tree since the start
    collect hooks      those of `[[verifier.collect]]`, as they are written

All of it is the agent's to break. A failure is on the record and stops nothing: a verifier rejects what lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.errors import EngineLost, SandboxError, SandboxLost
from forkyard.sandbox import ProgramResult, Sandbox
from forkyard.secrets import Secrets
from forkyard.task.directory.schema import CollectHook
from forkyard.values import printable, tail

SCRIPT = "pre_artifacts.sh"
SCRIPT_SECONDS = 300.0
PATCH = "/logs/artifacts/model.patch"
OUTPUT_TAIL = 1000  # characters on record of what failed

_PLACE = "/tmp/.pre_artifacts.sh"
_BASE = ".git/HEAD"
_DIFF = r"""
set -e
[ -n "$FORKYARD_BASE" ] || exit 0
export HOME="$(mktemp -d)" GIT_INDEX_FILE
trap 'rm -rf "$HOME"' EXIT
git config --global --add safe.directory '*'
GIT_INDEX_FILE="$HOME/index"
cp "$(git rev-parse --git-dir)/index" "$GIT_INDEX_FILE" 2>/dev/null || git read-tree "$FORKYARD_BASE"
git add -A .
git diff --cached --binary "$FORKYARD_BASE" > "$FORKYARD_PATCH"
"""
_HEAD = """
export HOME="$(mktemp -d)"
git config --global --add safe.directory '*'
git rev-parse --verify -q HEAD; code=$?
rm -rf "$HOME"; exit $code
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is to be made ready, and how: `script` is the task's own, `base` what a diff is made against."""

    script: Path | None
    hooks: tuple[CollectHook, ...]
    patch: bool  # whether model.patch is wanted when no script makes it
    base: str | None
    workdir: str | None
    env: Mapping[str, str]
    secrets: Secrets


async def base_commit(runtime: Sandbox, workdir: str | None, env: Mapping[str, str]) -> str | None:
    """The commit that the working directory stands at, None when it is no git working tree."""
    try:
        await runtime.read(f"{workdir.rstrip('/')}/{_BASE}" if workdir else _BASE, 4096)
    except (OSError, SandboxError):
        return None
    told = await runtime.run(_HEAD, env, cwd=workdir, user="0", timeout=60)
    return told.stdout.strip() or None if told.ok else None


async def make_ready(runtime: Sandbox, evidence: Evidence) -> list[dict[str, Any]]:
    """Run all of it: one entry for each thing that failed. Raises SandboxLost and EngineLost."""
    failed = []
    if evidence.script is not None:
        failed.append(await _run_script(runtime, evidence, evidence.script))
    elif evidence.patch:
        failed.append(await _make_patch(runtime, evidence))
    for hook in evidence.hooks:
        failed.append(await _attempt(runtime, evidence, hook.command, hook.command, hook.timeout_sec, user=hook.user))
    return [entry for entry in failed if entry]


async def _run_script(runtime: Sandbox, evidence: Evidence, script: Path) -> dict[str, Any] | None:
    try:
        await runtime.write(_PLACE, script.read_bytes(), 0o755)
    except (SandboxLost, EngineLost):
        raise
    except (SandboxError, OSError) as err:
        return {"command": SCRIPT, "error": printable(str(err))}
    return await _attempt(runtime, evidence, SCRIPT, ["bash", _PLACE], SCRIPT_SECONDS)


async def _make_patch(runtime: Sandbox, evidence: Evidence) -> dict[str, Any] | None:
    with suppress(OSError, SandboxError):  # it is there and empty, whatever becomes of the rest
        await runtime.write(PATCH, b"")
    if evidence.base is None:
        return None
    variables = {"FORKYARD_BASE": evidence.base, "FORKYARD_PATCH": PATCH}
    return await _attempt(runtime, evidence, "model.patch", _DIFF, SCRIPT_SECONDS, variables)


async def _attempt(
    runtime: Sandbox,
    evidence: Evidence,
    name: str,
    command: str | list[str],
    seconds: float,
    variables: Mapping[str, str] | None = None,
    user: str | None = None,
) -> dict[str, Any] | None:
    """Run one command to its end; what goes on the record when it fails."""
    env = {**evidence.env, **(variables or {})}
    try:
        result = await runtime.run(command, env, cwd=evidence.workdir, user=user, timeout=seconds)
    except (SandboxLost, EngineLost):
        raise
    except (SandboxError, OSError, ValueError) as err:
        return {"command": name, "error": printable(str(err))}
    return None if result.ok else {"command": evidence.secrets.hide(name), **_told(result, evidence.secrets)}


def _told(result: ProgramResult, secrets: Secrets) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "output_tail": tail(printable(secrets.hide(result.stdout + result.stderr)), OUTPUT_TAIL),
    }
