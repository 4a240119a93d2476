"""Reading task directories. Everything wrong with a task is told at once, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.task.data import TaskData, TaskTimeout
from forkyard.task.directory.artifacts import declared
from forkyard.task.directory.contradictions import TaskSource, contradictions
from forkyard.task.directory.evidence import missing_evidence
from forkyard.task.directory.files import TaskFiles, is_within
from forkyard.task.directory.notes import notes_of
from forkyard.task.directory.problems import read_as_far_as_possible
from forkyard.task.directory.resources import resources_of
from forkyard.task.directory.schema import DEFAULT_AGENT_TIMEOUT, TaskToml
from forkyard.task.directory.stages import read_stages
from forkyard.task.directory.task import DirectoryTask
from forkyard.task.directory.variables import fill_in
from forkyard.task.taskset import Taskset
from forkyard.trace import Message
from forkyard.values import MIB

ARTIFACT_BYTES = 128 * MIB  # the format bounds them nowhere; they are held in memory


class DirectoryTaskset(Taskset):
    """The tasks of one directory, in the order of their directories' names."""

    def __init__(self, name: str, tasks: Iterable[DirectoryTask]) -> None:
        super().__init__()
        self.name = name
        self._tasks = tuple(tasks)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def load(self) -> tuple[DirectoryTask, ...]:
        """The tasks, which were read and checked when the set was made."""
        return self._tasks


def load_taskset(path: str | Path, host: Mapping[str, str] | None = None) -> Taskset:
    """The tasks of a directory of task directories, or the one task of a task directory.

    Raises ConfigError with the mistakes of all tasks, so a broken task never makes a set smaller.
    """
    root = Path(path)
    require_directory(root, "a task directory, a directory or an archive of them, or a tasks.py")
    directories = task_directories(root)
    if not directories:
        raise ConfigError(f"{root} holds no task: no directory in it has a task.toml")
    tasks: list[DirectoryTask] = []
    problems: list[str] = []
    for directory in directories:
        try:
            tasks.append(load_task(directory, host))
        except ConfigError as err:
            problems += err.problems
    places: dict[str, Path] = {}
    for task in tasks:
        if task.name in places:
            problems.append(f"{places[task.name]} and {task.files.root} are both called {task.name}; rename one")
        places[task.name] = task.files.root
    if problems:
        raise ConfigError(*problems)
    return DirectoryTaskset(root.resolve().name, tasks)


def load_task(path: str | Path, host: Mapping[str, str] | None = None) -> DirectoryTask:
    """One task directory. `host` fills in `${NAME}` templates, the process's own environment by default.

    Raises ConfigError with one sentence for each mistake, naming file, line, key, value and mend.
    """
    root = Path(path)
    require_directory(root, "a directory with task.toml, instruction.md and tests/")
    files = TaskFiles(root)
    if not is_within(root, root / "task.toml"):  # nothing of such a file is told
        raise ConfigError(*files.problems())
    reading = read_as_far_as_possible(root / "task.toml")
    toml = reading.toml or TaskToml()
    source = TaskSource(root, toml, reading.lines)
    problems = [*reading.problems, *files.problems()]
    unsure = any(key[0] == "steps" for key in reading.bad) or (reading.toml is None and (root / "steps").is_dir())
    stages = () if unsure else read_stages(toml, files, problems)
    problems += contradictions(source, reading)
    variables = fill_in(toml, os.environ if host is None else host, source.at, problems)
    if problems:
        raise ConfigError(*problems)
    notes = notes_of(root, toml, {stage.script: stage.flaw for stage in stages})
    notes += tuple(note for stage in stages for note in missing_evidence(toml, stage, files))
    return DirectoryTask(_data(source, stages[0].prompt), toml, files, variables, notes, stages, reading.lines)


def require_directory(root: Path, meant: str) -> None:
    """Raise ConfigError when there is no directory at a path; `meant` is what is to be named in its place."""
    if not root.is_dir():
        raise ConfigError(f"{root} {'holds no task' if root.exists() else 'does not exist'}: name {meant}")


def task_directories(root: Path) -> list[Path]:
    """The directory itself when it is meant as a task, or else those in it that are, broken ones too."""
    return [root] if _looks_like_task(root) else sorted(filter(_looks_like_task, _subdirectories(root)))


def _subdirectories(root: Path) -> list[Path]:
    return [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _looks_like_task(directory: Path) -> bool:
    """Whether a directory is meant as a task, a broken one too."""
    if (directory / "task.toml").exists():
        return True
    return (directory / "instruction.md").exists() and any((directory / p).exists() for p in ("tests", "environment"))


def _data(source: TaskSource, prompt: str | list[Message]) -> TaskData:
    toml, environment = source.toml, source.toml.environment
    said = {} if toml.network is None else {"network_allow": toml.hosts_of(toml.agent)}
    return TaskData(
        id=source.root.resolve().name,
        name=toml.task.name if toml.task else source.root.resolve().name,
        description=(toml.task.description or None) if toml.task else None,
        prompt=prompt,
        image=environment.docker_image,
        workdir=environment.workdir,
        agent_user=toml.agent.user,
        artifacts=declared(toml.artifacts),
        artifact_max_bytes=ARTIFACT_BYTES,
        timeout=TaskTimeout(agent=toml.agent.timeout_sec or DEFAULT_AGENT_TIMEOUT, scoring=toml.verifier.timeout_sec),
        resources=resources_of(environment),
        verifier=toml.verifier.mode,
        **said,
    )
