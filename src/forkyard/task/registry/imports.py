"""Directories of tasks that came from elsewhere: every task read, the manifest kept to, what lacks noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.task.directory import DirectoryTask, DirectoryTaskset, load_task, task_directories
from forkyard.task.directory.files import is_within
from forkyard.task.registry.archive import unpack_archive
from forkyard.task.registry.kinds import ENDINGS, MANIFEST
from forkyard.task.registry.manifest import chosen, read_manifest
from forkyard.values import first_names

TASKS = "tasks"  # where repositories of tasks have them


def load_archive(path: Path, host: Mapping[str, str] | None = None, label: str | None = None) -> DirectoryTaskset:
    """The tasks of an archive. Raises ConfigError."""
    name = next((path.name.removesuffix(end) for end in ENDINGS if path.name.endswith(end)), path.name)
    return load_import(unpack_archive(path), label or name, host)


def load_import(root: Path, label: str, host: Mapping[str, str] | None = None) -> DirectoryTaskset:
    """The tasks of a directory that holds them, a task, or a manifest, at its top or one folder further down.

    Raises ConfigError.
    """
    place = inner(root)
    if (place / MANIFEST).exists():
        return load_manifest(place, host, label)
    tasks = _read(place, task_directories(place), host)
    if not tasks:
        raise ConfigError(f"import_failed: {label} holds no task: no directory in {place} has a task.toml")
    return DirectoryTaskset(label, _noted(tasks))


def load_manifest(root: Path, host: Mapping[str, str] | None = None, label: str | None = None) -> DirectoryTaskset:
    """The tasks that a directory's dataset.toml lists. Raises ConfigError."""
    manifest = read_manifest(root / MANIFEST)
    tasks = _read(root, task_directories(root), host)
    listed = chosen(manifest, tasks)
    names = {entry.name for entry in manifest.listed.tasks}
    if unlisted := [task.name for task in tasks if task.name not in names]:
        note = f"{root} holds tasks that its {MANIFEST} does not list, and that are not played: {first_names(unlisted)}"
        listed = [task.noted(note) for task in listed]
    return DirectoryTaskset(label or manifest.label, _noted(listed))


def read_tasks(root: Path, directories: Iterable[Path], host: Mapping[str, str] | None) -> list[DirectoryTask]:
    """Directories as an import reads them, with the notes of an import. Raises ConfigError."""
    return _noted(_read(root, directories, host))


def inner(root: Path) -> Path:
    """Where the tasks lie: archives and repositories often have a folder around them, or one called tasks."""
    while not (root / MANIFEST).exists() and not task_directories(root):
        folders = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]
        inner = [folder for folder in folders if folder.name == TASKS] or folders
        if len(inner) != 1 or inner[0].is_symlink():
            break
        root = inner[0]
    return root


def _read(root: Path, directories: Iterable[Path], host: Mapping[str, str] | None) -> list[DirectoryTask]:
    tasks: dict[str, DirectoryTask] = {}
    problems: list[str] = []
    for directory in directories:
        if not is_within(root, directory):
            problems.append(f"task_parse_failed: {directory} is a link that leads out of the set")
            continue
        try:
            task = load_task(directory, host)
        except ConfigError as err:
            problems += [f"task_parse_failed: {problem}" for problem in err.problems]
            continue
        if task.name in tasks:
            other = tasks[task.name].files.root
            problems.append(f"task_parse_failed: {other} and {directory} are both called {task.name}; rename one")
        tasks[task.name] = task
    if problems:
        raise ConfigError(*problems)
    return list(tasks.values())


def _noted(tasks: Sequence[DirectoryTask]) -> list[DirectoryTask]:
    """What an import says of missing solutions, which the oracle would play."""
    without = {task.name for task in tasks if task.solution is None}
    if not without:
        return list(tasks)
    note = (
        "no_solutions_archived: no task of the set has a solution that the oracle could play"
        if len(without) == len(tasks)
        else "partial_solutions_archived: without a solution the oracle cannot play it"
    )
    return [task.noted(note) if task.name in without else task for task in tasks]
