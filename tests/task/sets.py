"""Sets of small tasks, written by tests: directories, manifests, archives, listings."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.task import load_task
from tests.task.conftest import VALID

SOLUTION = {"solution/solve.sh": "echo done\n"}


def write_set(root: Path, *names: str, files: dict[str, str] | None = None) -> Path:
    """Tasks called cases/<name>, by default each with a solution."""
    for name in names:
        toml = {"task.toml": f'[task]\nname = "cases/{name}"\n'}
        for path, content in {**VALID, **toml, **(SOLUTION if files is None else files)}.items():
            file = root / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    return root


def manifest(root: Path, *names: str, more: str = "", **digests: str) -> Path:
    """A dataset.toml of the set org/set@1.0 with those tasks, their digests being right unless given."""
    lines = ['[dataset]\nname = "org/set"\nversion = "1.0"\n']
    for name in names:
        digest = digests.get(name) or load_task(root / name, {}).digest
        lines.append(f'[[tasks]]\nname = "cases/{name}"\ndigest = "{digest}"\n')
    (root / "dataset.toml").write_text("".join(lines) + more)
    return root


def refused(load: Callable[[], object]) -> tuple[str, ...]:
    """What a load is refused for."""
    with pytest.raises(ConfigError) as caught:
        load()
    return caught.value.problems


def tar(path: Path, root: Path, prefix: str, mode: str = "w:gz") -> Path:
    """An archive of a directory, under another name."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(root, prefix)
    return path


def listing(root: Path, *tasks: dict[str, str], **more: object) -> Path:
    """A registry.json with the set old@1.0 of those tasks."""
    root.mkdir(parents=True, exist_ok=True)
    entry = {"name": "old", "version": "1.0", "description": "x", "tasks": list(tasks), **more}
    (root / "registry.json").write_text(json.dumps([entry]))
    return root
