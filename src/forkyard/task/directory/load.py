"""Reading task directories. Everything wrong with a task is told at once, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.task.data import Artifact, TaskData, TaskResources, TaskTimeout
from forkyard.task.directory.canary import strip_canary
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.notes import flaw_of, notes_of
from forkyard.task.directory.problems import dotted, place, read_task_toml
from forkyard.task.directory.schema import DEFAULT_AGENT_TIMEOUT, ArtifactTable, TaskToml
from forkyard.task.directory.task import DirectoryTask
from forkyard.task.directory.unsupported import refusals
from forkyard.task.directory.variables import fill_in
from forkyard.task.taskset import Taskset


@dataclass(frozen=True, slots=True)
class _Source:
    """A task directory whose task.toml was read."""

    root: Path
    toml: TaskToml
    lines: Mapping[Key, int]

    def at(self, *key: str | int) -> str:
        return f"{place(self.root / 'task.toml', key, self.lines)}: {dotted(key)}"


class DirectoryTaskset(Taskset):
    """The tasks of one directory, in the order of their directories' names."""

    def __init__(self, name: str, tasks: Iterable[DirectoryTask]) -> None:
        self.name = name
        self._tasks = tuple(tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def load(self) -> tuple[DirectoryTask, ...]:
        """The tasks, which were read and checked when the set was made."""
        return self._tasks


def load_taskset(path: str | Path, host: Mapping[str, str] | None = None) -> Taskset:
    """The tasks of a directory of task directories, or the one task of a task directory.

    Raises ConfigError with the mistakes of all tasks, so a broken task never makes a set smaller.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory; name a task directory or a directory of them")
    directories = [root] if _looks_like_task(root) else sorted(filter(_looks_like_task, _subdirectories(root)))
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
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory; a task is a directory with task.toml, instruction.md and tests/")
    problems = TaskFiles(root).problems()
    missing: list[str] = []
    instruction = _instruction(root, missing)
    script = _script(root, missing)
    try:
        toml, lines = read_task_toml(root / "task.toml")
    except ConfigError as err:
        raise ConfigError(*err.problems, *problems, *missing) from None
    problems += [] if toml.steps else missing  # each step has its own
    source = _Source(root, toml, lines)
    problems += _contradictions(source)
    variables = fill_in(toml, os.environ if host is None else host, source.at, problems)
    if problems:
        raise ConfigError(*problems)
    flaw = flaw_of(script)
    notes = notes_of(root, toml, flaw)
    return DirectoryTask(_data(source, instruction), toml, TaskFiles(root), variables, notes, flaw, lines)


def _subdirectories(root: Path) -> list[Path]:
    return [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _looks_like_task(directory: Path) -> bool:
    """Whether a directory is meant as a task, a broken one too."""
    if (directory / "task.toml").exists():
        return True
    return (directory / "instruction.md").exists() and any((directory / p).exists() for p in ("tests", "environment"))


def _instruction(root: Path, problems: list[str]) -> str:
    path = root / "instruction.md"
    if not path.is_file():
        problems.append(f"{path} is missing; write what the agent is to do into it")
        return ""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as err:
        problems.append(f"{path} is not UTF-8 (byte {err.start}); save it as UTF-8")
        return ""
    text = strip_canary(text.replace("\r\n", "\n"))
    if not text.strip():
        problems.append(f"{path} is empty; write what the agent is to do into it")
    return text


def _script(root: Path, problems: list[str]) -> bytes:
    path = root / "tests" / "test.sh"
    if not path.is_file():
        problems.append(f"{path} is missing; it is the script that writes the reward")
        return b""
    script = path.read_bytes()
    if not script.strip():
        problems.append(f"{path} is empty; it must write the reward to /logs/verifier/reward.txt")
    if TaskFiles(root).left_out()("tests/test.sh"):
        problems.append(f"{root / '.harborignore'} excludes tests/test.sh, which every task needs; keep it")
    if (root / "solution/solve.sh").exists() and TaskFiles(root).left_out()("solution/solve.sh"):
        problems.append(f"{root / '.harborignore'} excludes solution/solve.sh; keep it")
    return script


def _contradictions(source: _Source) -> list[str]:
    """What the file says rightly but the directory, or this version, cannot fulfil."""
    root, toml = source.root, source.toml
    problems = refusals(toml, root, source.at)
    environment = root / "environment"
    built = any((environment / name).is_file() for name in ("Dockerfile", "docker-compose.yaml"))
    if not built and toml.environment.docker_image is None:
        problems.append(
            f"{root} has no image to start from; write {environment / 'Dockerfile'} or set environment.docker_image"
        )
    problems += [
        f"{source.at('artifacts', number)} comes from the service {entry.service!r}, but the task has one container"
        for number, entry in enumerate(toml.artifacts)
        if not entry.from_main and not (environment / "docker-compose.yaml").exists()
    ]
    return problems


def _data(source: _Source, instruction: str) -> TaskData:
    toml, environment = source.toml, source.toml.environment
    said = {} if toml.network is None else {"network_allow": toml.hosts_of(toml.agent)}
    return TaskData(
        id=source.root.resolve().name,
        name=toml.task.name if toml.task else source.root.resolve().name,
        description=(toml.task.description or None) if toml.task else None,
        prompt=instruction,
        image=environment.docker_image,
        workdir=environment.workdir,
        agent_user=toml.agent.user,
        artifacts=tuple(map(_artifact, toml.artifacts)),
        timeout=TaskTimeout(agent=toml.agent.timeout_sec or DEFAULT_AGENT_TIMEOUT, scoring=toml.verifier.timeout_sec),
        resources=TaskResources(
            cpu=environment.cpus,
            memory=_gigabytes(environment.megabytes_of_memory),
            disk=_gigabytes(environment.megabytes_of_storage),
        ),
        verifier="shared",
        **said,
    )


def _artifact(entry: ArtifactTable) -> Artifact:
    return Artifact(source=entry.source, destination=entry.destination, exclude=entry.exclude, required=False)


def _gigabytes(megabytes: int | None) -> float | None:
    return None if megabytes is None else megabytes / 1024
