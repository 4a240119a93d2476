"""Whether a separate verifier gets what an honest solution leaves: the paths that solution and tests both name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from forkyard.task.data import ARTIFACTS_DIR
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.stages import Stage
from forkyard.values import first_names

READ = 256 << 10  # bytes of one file; whoever writes more writes data
_PATH = re.compile(rb"(?<![\w./~$}*-])/[\w.+-]+(?:/[\w.+-]+)+")
_NO_EVIDENCE = (
    "bin",
    "dev",
    "etc",
    "lib",
    "lib64",
    "logs",
    "proc",
    "run",
    "sbin",
    "solution",
    "sys",
    "tests",
    "tmp",
    "usr",
)


def missing_evidence(toml: TaskToml, stage: Stage, files: TaskFiles) -> list[str]:
    """A note for each way in which a separate verifier may see less than it has to judge."""
    if stage.verifier.mode != "separate":
        return []
    tests = list(_texts(files, *stage.tests))
    if not toml.artifacts:
        if any(ARTIFACTS_DIR.encode() in text for text in tests):
            return []
        return [
            "separate_without_artifacts: no artifacts are declared, so the verifier sees nothing of the agent's work "
            f"but {ARTIFACTS_DIR}, which tests/ does not name; list under artifacts what it judges"
        ]
    solution = list(_texts(files, *filter(None, [stage.solution])))
    both = _paths(tests) & _paths(solution)
    brought = [PurePosixPath(entry.source) for entry in stage.artifacts]
    lost = sorted(str(path) for path in both if not any(_covers(source, path) for source in brought))
    if not lost:
        return []
    return [
        f"separate_without_artifacts: solution/ and tests/ both name {first_names(lost)}, which no artifact brings to "
        "the verifier; list it under artifacts, unless it only has to be in the image"
    ]


def _covers(source: PurePosixPath, path: PurePosixPath) -> bool:
    """Whether an artifact brings a path or something in it; a path that was cut at a blank counts as its beginning."""
    return path.is_relative_to(source) or str(source).startswith(str(path))


def _texts(files: TaskFiles, *directories: str) -> Iterator[bytes]:
    for directory in directories:
        for entry in files.entries(directory):
            path = files.root / entry.path
            if entry.kind == "file" and path.stat().st_size <= READ:
                yield path.read_bytes()


def _paths(texts: list[bytes]) -> set[PurePosixPath]:
    found = (
        PurePosixPath(match.decode("utf-8", "replace").rstrip(".")) for text in texts for match in _PATH.findall(text)
    )
    return {path for path in found if path.parts[1] not in _NO_EVIDENCE}
