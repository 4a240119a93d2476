"""What a rollout leaves on the host: `rollouts/<trace id>/{agent,verifier,artifacts}/` of its /logs, and what was
collected for a separate verifier."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from forkyard.errors import SandboxError
from forkyard.sandbox import Sandbox
from forkyard.sandbox.archive import unpack_untrusted
from forkyard.trace import Trace
from forkyard.values import MIB

LOGS = "/logs"
PARTS = ("agent", "verifier", "artifacts")
LIMIT = 64 * MIB
COLLECTED, COLLECTED_LIST = "collected", "manifest.json"  # its directory, and the file that names the archives in it


async def keep_logs(trace: Trace, sandbox: Sandbox, directory: Path) -> None:
    """Copy the sandbox's /logs to the host; what could not be copied is said in `trace.info["logs"]`."""
    for part in PARTS:
        (directory / part).mkdir(parents=True, exist_ok=True)
    await _keep(trace, sandbox, LOGS, directory)
    if trace.verifier.get("apart"):  # the verifier's is in memory, and no archive enters another file system
        await _keep(trace, sandbox, f"{LOGS}/verifier", directory / "verifier")


async def keep_parts(trace: Trace, sandbox: Sandbox, directory: Path, parts: Sequence[str]) -> None:
    """As `keep_logs`, of some of the directories in /logs, because others are another sandbox's to tell."""
    for part in parts:
        (directory / part).mkdir(parents=True, exist_ok=True)
        await _keep(trace, sandbox, f"{LOGS}/{part}", directory / part)


def keep_collected(collected: Mapping[str, bytes | None], directory: Path) -> None:
    """Write what was collected as it is, so that it can be graded again: archives, and `manifest.json` to name them."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest = []
    for number, (path, archive) in enumerate(collected.items()):
        name = None if archive is None else f"{number}.tar"
        manifest.append({"path": path, "archive": name})
        if name is not None and archive is not None:
            (directory / name).write_bytes(archive)
    (directory / COLLECTED_LIST).write_text(json.dumps(manifest, indent=1) + "\n")


async def _keep(trace: Trace, sandbox: Sandbox, path: str, directory: Path) -> None:
    try:
        archive = await sandbox.pull(path, max_bytes=LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return
    except SandboxError as err:
        trace.info.setdefault("logs", []).append(f"the logs were lost: {err}")
        return
    skipped = await asyncio.to_thread(unpack_untrusted, archive, directory)
    if skipped:
        trace.info["logs"] = [*trace.info.get("logs", []), *skipped][:20]
