"""dataset.toml: the tasks of a set, each with its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from forkyard.errors import ConfigError
from forkyard.task.directory import DirectoryTask
from forkyard.task.directory.fields import TaskName, Text
from forkyard.task.directory.files import is_within
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.problems import dotted, parse_toml, place, sentences
from forkyard.task.directory.schema import Author
from forkyard.task.directory.table import Several, Table

METRIC = "metric.py"
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class About(Table):
    """`[dataset]`."""

    name: Text
    version: Text | None = None
    description: str = ""
    authors: Several[Author] = ()
    keywords: Several[str] = ()


class ListedTask(Table):
    """One of `[[tasks]]`."""

    name: TaskName
    digest: Digest


class ListedFile(Table):
    """One of `[[files]]`, which belong to the set as a whole."""

    path: Text
    digest: Digest


class Listed(Table):
    """The whole file."""

    schema_version: str = "1.0"
    dataset: About
    tasks: Several[ListedTask] = ()
    files: Several[ListedFile] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A dataset.toml that was read."""

    path: Path
    listed: Listed
    lines: Mapping[Key, int]

    def at(self, *key: str | int) -> str:
        """`file, line N: key`."""
        return f"{place(self.path, key, self.lines)}: {dotted(key)}"

    @property
    def label(self) -> str:
        """Name and version."""
        about = self.listed.dataset
        return f"{about.name}@{about.version}" if about.version else about.name


def read_manifest(path: Path) -> Manifest:
    """A manifest. Raises ConfigError, each sentence beginning with the name of what is wrong."""
    try:
        if path.is_symlink():
            raise ConfigError(f"{path} is a link; put the file itself there")
        values, lines = parse_toml(path)
        manifest = Manifest(path, Listed.model_validate(values), lines)
    except ConfigError as err:
        raise ConfigError(*(f"dataset_manifest_invalid: {problem}" for problem in err.problems)) from None
    except ValidationError as err:
        told = sentences(path, lines, err, Listed, "dataset.toml")
        raise ConfigError(*(f"dataset_manifest_invalid: {problem}" for problem in told)) from None
    if problems := [*_metric(manifest), *_files(manifest), *_doubles(manifest)]:
        raise ConfigError(*problems)
    return manifest


def chosen(manifest: Manifest, tasks: Sequence[DirectoryTask]) -> list[DirectoryTask]:
    """The tasks a manifest lists, in its order. Raises ConfigError for those that are missing or have changed."""
    by_name = {task.name: task for task in tasks}
    found, problems = [], []
    for number, entry in enumerate(manifest.listed.tasks):
        task = by_name.get(entry.name)
        where = manifest.at("tasks", number, "name")
        if task is None:
            problems.append(
                f"manifest_task_missing: {where} = {entry.name!r}: no directory in {manifest.path.parent} is that task"
            )
        elif task.digest != entry.digest:
            problems.append(
                f"manifest_digest_mismatch: {manifest.at('tasks', number, 'digest')} = {entry.digest!r}, but "
                f"{task.files.root} has {task.digest}: put the task back as it was, or write its digest down"
            )
        else:
            found.append(task)
    if problems:
        raise ConfigError(*problems)
    return found


def _metric(manifest: Manifest) -> list[str]:
    beside = (manifest.path.parent / METRIC).exists() or any(f.path == METRIC for f in manifest.listed.files)
    path = manifest.path.parent / METRIC
    return [f"custom_metric_not_supported: {path} would count rewards in its own way; remove it"] if beside else []


def _files(manifest: Manifest) -> list[str]:
    problems = []
    root = manifest.path.parent
    for number, entry in enumerate(manifest.listed.files):
        path = root / entry.path
        where = manifest.at("files", number, "path")
        if not is_within(root, path):
            problems.append(f"dataset_manifest_invalid: {where} = {entry.path!r} lies outside of the set")
        elif not path.is_file():
            problems.append(f"dataset_manifest_invalid: {where} = {entry.path!r} is not there")
        elif (digest := _digest(path)) != entry.digest:
            problems.append(f"manifest_digest_mismatch: {where} = {entry.path!r} has {digest}, not {entry.digest}")
    return problems


def _doubles(manifest: Manifest) -> list[str]:
    names = [entry.name for entry in manifest.listed.tasks]
    doubles = [number for number, name in enumerate(names) if name in names[:number]]
    problems = [
        f"dataset_manifest_invalid: {manifest.at('tasks', number, 'name')} = {names[number]!r} is listed twice"
        for number in doubles
    ]
    return problems if names else [f"dataset_manifest_invalid: {manifest.path} lists no task"]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
