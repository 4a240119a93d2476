"""registry.json: sets by name and version, each task a folder of a git repository or of the registry itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from forkyard.errors import ConfigError
from forkyard.task.directory import DirectoryTaskset
from forkyard.task.directory.files import is_within
from forkyard.task.registry.imports import read_tasks
from forkyard.task.registry.repository import Repository, check_out
from forkyard.values import printable

LISTING = "registry.json"


class _Entry(BaseModel):
    """A foreign file, of which more keys may be there than are needed."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ListedFolder(_Entry):
    """A task: the folder `path`, of a repository at a commit, or of the registry's directory."""

    name: str
    path: str
    git_url: str | None = None
    git_commit_id: str | None = None


class ListedSet(_Entry):
    """A set at a version."""

    name: str
    version: str
    description: str = ""
    tasks: list[ListedFolder] = Field(min_length=1)
    metrics: list[dict[str, Any]] = []


_ALL = TypeAdapter(list[ListedSet])


def read_listing(path: Path) -> list[ListedSet]:
    """The sets of a registry.json; none when there is no file. Raises ConfigError."""
    try:
        return _ALL.validate_python(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return []
    except OSError as err:
        raise ConfigError(f"import_failed: {path} cannot be read: {err.strerror}") from None
    except (ValueError, RecursionError) as err:
        if not isinstance(err, ValidationError):
            raise ConfigError(f"import_failed: {path} is not JSON: {printable(str(err))}") from None
        first = err.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(printable(f"import_failed: {path} is no registry: {where}: {first['msg']}")) from None


def load_listed(root: Path, listed: ListedSet, host: Mapping[str, str] | None) -> DirectoryTaskset:
    """The tasks of a set. Raises ConfigError."""
    label = f"{listed.name}@{listed.version}"
    if own := [each for each in listed.metrics if each.get("type") not in (None, "mean")]:
        raise ConfigError(
            f"custom_metric_not_supported: {root / LISTING}: {label} counts its rewards by {own[0]['type']!r}"
        )
    directories: list[Path] = []
    problems: list[str] = []
    for entry in listed.tasks:
        try:
            directories.append(_folder(root, entry))
        except ConfigError as err:
            problems += err.problems
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    outermost = Path("/")  # each folder was seen to lie in its repository, or in the registry
    return DirectoryTaskset(label, read_tasks(outermost, directories, host))


def _folder(root: Path, entry: ListedFolder) -> Path:
    if entry.git_url is not None:
        return check_out(Repository.checked(entry.git_url, entry.git_commit_id, entry.path))
    folder = root / entry.path
    if not is_within(root, folder):
        raise ConfigError(f"import_failed: {root / LISTING}: the task {entry.name!r} lies outside of {root}")
    if not folder.is_dir():
        raise ConfigError(f"manifest_task_missing: {root / LISTING}: {entry.name!r}: there is no directory {folder}")
    return folder
