"""Grading again, from the artifacts that an earlier run collected for a separate verifier."""

from __future__ import annotations

import json
import time
from pathlib import Path

from forkyard.grade.artifacts import Collected
from forkyard.grade.grading import Grading
from forkyard.grade.logs import COLLECTED_LIST
from forkyard.grade.separate import verify_collected
from forkyard.trace import Status, Trace


def collected_in(directory: Path) -> dict[str, Path | None]:
    """The archives that `logs.keep_collected` wrote, by path; None for a path that was not there.

    Raises OSError and ValueError when they are not whole.
    """
    entries = json.loads((directory / COLLECTED_LIST).read_bytes())
    try:
        found = {str(entry["path"]): entry["archive"] for entry in entries}
        archives = {path: None if name is None else directory / Path(name).name for path, name in found.items()}
    except (TypeError, KeyError) as err:
        raise ValueError(f"{directory / COLLECTED_LIST} is no list of artifacts") from err
    for archive in archives.values():
        if archive is not None:
            archive.stat()
    return archives


def read_collected(directory: Path) -> Collected:
    """What the archives hold. Raises as `collected_in` does."""
    archives = collected_in(directory)
    return {path: None if archive is None else archive.read_bytes() for path, archive in archives.items()}


async def graded_again(grading: Grading, trace: Trace, collected: Collected) -> None:
    """Grade what was collected, in mode `separate`. Settles the trace's status, short of cancellation."""
    trace.verifier["mode"] = grading.mode
    started = time.perf_counter()
    try:
        await verify_collected(grading, trace, collected)
        trace.settle(Status.INDETERMINATE, "the verifier said nothing")
    finally:
        trace.timing.grade_ms = (time.perf_counter() - started) * 1000
