"""A `nop` that first looks whether the agent could read what is to be hidden from it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

from forkyard.errors import SandboxError
from forkyard.harness import ModelContext, NopHarness
from forkyard.sandbox import Sandbox
from forkyard.task import DirectoryTask, Task
from forkyard.task.check.image_rules import SMALLEST, telling
from forkyard.task.check.subject import Subject
from forkyard.trace import Trace

FOUND = "hidden_files"
_MOST = 200  # files looked for
_SECONDS = 60.0
_PRUNED = ("/proc", "/sys", "/dev", "/usr/lib", "/usr/share", "/usr/include")
_SHOWN = 20


class PeekingHarness(NopHarness):
    """Leaves on the trace, as `info.hidden_files`, which files of the sandbox are copies of hidden ones."""

    name: ClassVar[str] = "nop"

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Look, and stop."""
        if isinstance(task, DirectoryTask):
            seen = trace.info.get(FOUND, {"searched": True, "found": []})  # a task of several steps is seen in each
            now = await _look(task, runtime)
            trace.info[FOUND] = {
                "searched": seen["searched"] and now["searched"],
                "found": seen["found"] + [pair for pair in now["found"] if pair not in seen["found"]],
            }
        trace.stop("agent_completed")


async def _look(task: DirectoryTask, runtime: Sandbox) -> dict[str, Any]:
    """`searched` says whether it could be looked for, `found` has pairs of a path inside and the file it equals."""
    wanted, sizes = hidden_digests(task.files.root)
    if not wanted:
        return {"searched": True, "found": []}
    pruned = [part for path in _PRUNED for part in ("-path", path, "-o")][:-1]
    sized = [part for size in sorted(sizes) for part in ("-size", f"{size}c", "-o")][:-1]
    search = ["find", "/", "(", *pruned, ")", "-prune", "-o", "-type", "f", "(", *sized, ")"]
    command = [*search, "-exec", "sha256sum", "{}", "+"]
    try:
        result = await runtime.run(command, user=task.data.agent_user, cwd="/", timeout=_SECONDS)
    except SandboxError:
        return {"searched": False, "found": []}
    found = []
    for line in result.stdout.splitlines():
        digest, _, path = line.removeprefix("\\").partition("  ")
        if digest in wanted:
            found.append([path, wanted[digest]])
    searched = not result.timed_out and result.exit_code not in (126, 127)
    return {"searched": searched, "found": sorted(found)[:_SHOWN]}


def hidden_digests(root: Path) -> tuple[dict[str, str], set[int]]:
    """Which contents tell how a task is graded or solved, by digest, and their sizes."""
    subject = Subject(root)
    wanted: dict[str, str] = {}
    sizes: set[int] = set()
    for path in (*telling(subject), *subject.reference)[:_MOST]:
        size = (root / path).stat().st_size
        if size >= SMALLEST:
            with (root / path).open("rb") as file:
                wanted[hashlib.file_digest(file, "sha256").hexdigest()] = path
            sizes.add(size)
    return wanted, sizes
