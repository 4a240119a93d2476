"""From the entries of `artifacts` to what leaves the agent's sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from forkyard.task.data import Artifact
from forkyard.task.directory.schema import ArtifactTable


def declared(entries: Iterable[ArtifactTable], service: str = "main") -> tuple[Artifact, ...]:
    """Those of a service, by default the agent's own sandbox; of two with the same source the first counts.

    None is required: a verifier rejects what lacks.
    """
    found: dict[str, Artifact] = {}
    for entry in entries:
        artifact = Artifact(source=entry.source, destination=entry.destination, exclude=entry.exclude, required=False)
        if (entry.service or "main") == service:
            found.setdefault(posixpath.normpath(entry.source), artifact)
    return tuple(found.values())
