"""Archives into and out of a running sandbox: a child of its PID 1 packs and unpacks, over the pipes of a command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forkyard.errors import SandboxError, TooLarge
from forkyard.sandbox.common import path_error
from forkyard.sandbox.held.commands import Commands
from forkyard.sandbox.values import ProgramResult

TIMEOUT = 600.0
_ERRORS_KEPT = 64 << 10


async def pull(commands: Commands, path: str, inside: str, exclude: Sequence[str], max_bytes: int) -> bytes:
    """As `Sandbox.pull` of `path`, which is `inside` when told from "/"."""
    result = await _run(commands, "pull", path, inside, limits=(max_bytes, _ERRORS_KEPT), exclude=list(exclude))
    if result.stdout_total > max_bytes:
        raise TooLarge(f"the archive of {path} is over the {max_bytes} byte limit")
    return result.stdout_bytes


async def push(commands: Commands, path: str, inside: str, archive: bytes, layer: bool) -> None:
    """As `Sandbox.push` to `path`, which is `inside` when told from "/"."""
    await _run(commands, "push", path, inside, limits=(0, _ERRORS_KEPT), stdin=archive or bytes(1024), layer=layer)


async def _run(
    commands: Commands, op: str, path: str, inside: str, *, limits: tuple[int, int], stdin: bytes = b"", **fields: Any
) -> ProgramResult:
    target = {"path": inside, "cwd": "/", **fields}
    try:
        result = await commands.run(op, target, stdin=stdin, timeout=TIMEOUT, limits=limits, stop_at_limit=op == "pull")
    except OSError as err:
        raise _refusal(op, path, inside, err.errno, str(err.strerror), err.filename) from err
    if result.timed_out:
        raise SandboxError(f"cannot {op} {path}: it took longer than {TIMEOUT:.0f} s")
    if result.exit_code != 0 and result.stdout_total <= limits[0]:
        raise _error(op, path, inside, result)
    return result


def _error(op: str, path: str, inside: str, result: ProgramResult) -> Exception:
    try:
        report = json.loads(result.stderr)
        number, message = report["errno"], str(report["message"])
    except (ValueError, KeyError, TypeError):
        return SandboxError(f"cannot {op} {path}: it ended with {result.exit_code} {result.stderr[-500:]}")
    return _refusal(op, path, inside, number, message, report.get("path"))


def _refusal(op: str, path: str, inside: str, number: object, message: str, where: object) -> Exception:
    if op == "pull" and isinstance(number, int) and where == inside:  # the path itself, not something beneath it
        return path_error(OSError(number, message), path)
    return SandboxError(f"cannot {op} {path}: {message} ({where or path})")
