"""What a task declared to leave the sandbox, as it is kept on the host: `artifacts/` and its manifest.json.

Each lies at its own path without the leading slash, or at its destination. Of two whose places are equal, or lie
within each other, the first is kept. The manifest says of each what became of it:

    ok        it is there
    empty     a directory that held nothing, or /logs/artifacts that was not there
    failed    it was not there, or could not be had
    skipped   its place was taken
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from forkyard.errors import RolloutError
from forkyard.grade.archives import count_entries, moved
from forkyard.grade.artifacts import Collected, absolute
from forkyard.grade.declared import collect_declared
from forkyard.grade.grading import Grading
from forkyard.grade.logs import COLLECTED, keep_collected, keep_logs, keep_parts
from forkyard.grade.services import collect_from_services
from forkyard.sandbox import Sandbox
from forkyard.sandbox.archive import unpack_untrusted
from forkyard.task import ARTIFACTS_DIR, Artifact
from forkyard.trace import Trace

ARTIFACTS, ARTIFACTS_LIST = "artifacts", "manifest.json"


async def keep_evidence(grading: Grading, trace: Trace, sandbox: Sandbox) -> bool:
    """Keep what the task declares before its tests enter the agent's disk; whether there was anything to keep."""
    task = grading.task
    beside = await collect_from_services(task, trace, sandbox, stop=False)
    if grading.keep_in is None or not task.collects_what_it_can or not (task.data.artifacts or beside):
        return False
    collected = beside | await collect_declared(task, trace, sandbox, grading.workdir)
    await keep_artifacts(grading, trace, collected)
    if grading.mode == "shared" and not grading.lent:  # of what the verifier will have been in no disk is kept
        await asyncio.to_thread(keep_collected, collected, grading.keep_in / COLLECTED)
    return True


async def keep_ungraded(grading: Grading, trace: Trace, sandbox: Sandbox) -> None:
    """Keep logs and artifacts of what is not graded; what cannot be had is told in `trace.info["logs"]`."""
    if grading.keep_in is None:
        return
    try:
        if await keep_evidence(grading, trace, sandbox):
            await keep_parts(trace, sandbox, grading.keep_in, ("agent", "verifier"))
        else:
            await keep_logs(trace, sandbox, grading.keep_in)
            note_artifacts(grading)
    except RolloutError as err:
        trace.info["logs"] = [*trace.info.get("logs", []), f"what the agent left was lost: {err}"][:20]


async def keep_artifacts(grading: Grading, trace: Trace, collected: Collected) -> None:
    """Put what was collected on the host; parts that could not be kept are said in `trace.info["logs"]`."""
    if grading.keep_in is None:
        return
    directory = grading.keep_in / ARTIFACTS
    skipped = await asyncio.to_thread(_keep, _declared(grading), collected, directory)
    if skipped:
        trace.info["logs"] = [*trace.info.get("logs", []), *skipped][:20]


def note_artifacts(grading: Grading) -> None:
    """The same where nothing was declared: of /logs/artifacts, which the logs have brought, by the format's rules."""
    if grading.keep_in is None or not grading.task.collects_what_it_can:
        return
    directory = grading.keep_in / ARTIFACTS
    held = list(directory.iterdir()) if directory.is_dir() else []
    place = directory / ARTIFACTS_DIR.strip("/")
    if held:
        aside = directory.rename(directory.with_name(".artifacts"))
        place.parent.mkdir(parents=True)
        aside.rename(place)
    entry = _entry(Artifact(source=ARTIFACTS_DIR), ARTIFACTS_DIR.strip("/"), "directory", "ok" if held else "empty")
    _write(directory, [entry])


def _declared(grading: Grading) -> dict[str, tuple[Artifact, str | None]]:
    """What is collected by path, and the service it is from; None is the agent's sandbox."""
    found: dict[str, tuple[Artifact, str | None]] = {}
    for artifact in (*grading.task.data.artifacts, Artifact(source=ARTIFACTS_DIR)):
        found.setdefault(absolute(artifact, grading.workdir or "/"), (artifact, None))
    for service, artifacts in grading.task.services.items():
        for artifact in artifacts:
            found.setdefault(absolute(artifact, "/"), (artifact, service))
    return found


def _keep(declared: Mapping[str, tuple[Artifact, str | None]], collected: Collected, directory: Path) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    taken = [PurePosixPath(ARTIFACTS_LIST)]
    manifest, skipped = [], []
    for path, archive in collected.items():
        artifact, service = declared.get(path) or (Artifact(source=path), None)
        place = PurePosixPath(artifact.destination or path.strip("/"))
        kind, status = _found(path, archive)
        if status in ("ok", "empty") and any(_meet(place, other) for other in taken):
            status = "skipped"
        elif archive is not None:
            skipped += unpack_untrusted(moved(archive, path, str(place)), directory)
            taken.append(place)
        manifest.append({**_entry(artifact, str(place), kind, status), "service": service})
    _write(directory, manifest)
    return skipped


def _found(path: str, archive: bytes | None) -> tuple[str, str]:
    """What kind of thing was collected, and its status."""
    if archive is None:
        return ("directory", "empty") if path == ARTIFACTS_DIR else ("file", "failed")
    entries, top_is_directory = count_entries(path, archive)
    if not top_is_directory:
        return "file", "ok"
    return "directory", "ok" if entries > 1 else "empty"


def _meet(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one == other or one in other.parents or other in one.parents


def _entry(artifact: Artifact, place: str, kind: str, status: str) -> dict[str, Any]:
    return {
        "source": artifact.source,
        "destination": place,
        "type": kind,
        "status": status,
        "service": None,
        "exclude": list(artifact.exclude),
    }


def _write(directory: Path, manifest: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ARTIFACTS_LIST).write_text(json.dumps(manifest, indent=1) + "\n")
