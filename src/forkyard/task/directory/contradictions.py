"""What a task.toml says rightly, but other keys of it, or the directory, cannot fulfil."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.sandbox.composefile import MAIN, services_in
from forkyard.task.directory.fields import same_name
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.problems import Reading, dotted, place
from forkyard.task.directory.schema import ArtifactTable, CollectHook, Grading, TaskToml

COMPOSE_NAME = "docker-compose.yaml"
COMPOSE_FILE = f"environment/{COMPOSE_NAME}"
VERIFIER_COMPOSE_FILE = f"tests/{COMPOSE_NAME}"


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A task directory whose task.toml was read."""

    root: Path
    toml: TaskToml
    lines: Mapping[Key, int]

    def at(self, *key: str | int) -> str:
        """`file, line N: key`."""
        return f"{place(self.root / 'task.toml', key, self.lines)}: {dotted(key)}"


def contradictions(source: TaskSource, reading: Reading) -> list[str]:
    """One sentence for each; `reading` says which keys were left out, about which nothing is said again."""
    problems = [*_doubles(source), *_apart_in_steps(source), *_of_verifiers_containers(source)]
    if not reading.bad & {("environment",), ("environment", "docker_image")} and reading.toml is not None:
        problems += _no_image(source)
    if (source.root / COMPOSE_FILE).exists():
        problems += _of_several_containers(source)
    else:
        problems += _of_one_container(source)
    return problems


def _no_image(source: TaskSource) -> list[str]:
    environment = source.root / "environment"
    built = (environment / "Dockerfile").is_file() or (source.root / COMPOSE_FILE).is_file()
    if built or source.toml.environment.docker_image is not None:
        return []
    return [
        f"{source.root} has no image to start from; write {environment / 'Dockerfile'} or set environment.docker_image"
    ]


def _doubles(source: TaskSource) -> Iterator[str]:
    seen: dict[str, str] = {}
    for number, step in enumerate(source.toml.steps):
        same = same_name(step.name)
        if same in seen:
            yield (
                f"{source.at('steps', number, 'name')}: {step.name!r} is the name of two steps, an earlier one being "
                f"{seen[same]!r}; names differ in more than case and Unicode form"
            )
        seen[same] = step.name


def _apart_in_steps(source: TaskSource) -> Iterator[str]:
    toml = source.toml
    keys: dict[Key, None] = {}
    for number, step in enumerate(toml.steps):
        if step.verifier_over(toml.verifier).mode == "separate":
            own = step.verifier.mode_said is not None
            keys[_mode_key(step.verifier, "steps", number) if own else _mode_key(toml.verifier)] = None
    for key in keys:
        yield (
            f"{source.at(*key)}: separate_not_available_for_steps: a task with steps is graded in the agent's sandbox; "
            'write environment_mode = "shared"'
        )


def _mode_key(table: Grading, *above: str | int) -> Key:
    return (*above, "verifier", "environment" if table.environment_mode is None else "environment_mode")


def _entries(toml: TaskToml) -> Iterator[tuple[Key, ArtifactTable]]:
    """All that is declared to leave sandboxes, and where it is written."""
    tables: list[tuple[Key, tuple[ArtifactTable, ...]]] = [(("artifacts",), toml.artifacts)]
    tables += [(("steps", number, "artifacts"), step.artifacts) for number, step in enumerate(toml.steps)]
    for key, artifacts in tables:
        for index, entry in enumerate(artifacts):
            yield (*key, index), entry


def _hooks(toml: TaskToml) -> Iterator[tuple[Key, CollectHook]]:
    """All collect hooks, and where they are written."""
    tables: list[tuple[Key, Grading]] = [(("verifier",), toml.verifier)]
    tables += [(("steps", number, "verifier"), step.verifier) for number, step in enumerate(toml.steps)]
    for key, table in tables:
        for index, hook in enumerate(table.collect):
            yield (*key, "collect", index), hook


def _of_several_containers(source: TaskSource) -> list[str]:
    """What the compose file does not hold."""
    path, toml = source.root / COMPOSE_FILE, source.toml
    try:
        services = services_in(path)
    except ConfigError as err:
        return list(err.problems)
    built = (path.parent / "Dockerfile").is_file() or toml.environment.docker_image is not None
    problems = []
    if not built and not {"image", "build"} & services.get(MAIN, {}).keys():
        problems.append(
            f"{path} has neither image nor build for the service {MAIN!r}, which is the agent's; write one, or "
            f"{path.parent / 'Dockerfile'}"
        )
    elif toml.verifier.mode == "separate" and not built and not _has_own_image(source):
        problems.append(
            f"{source.at('verifier')}: its own sandbox has no image to start from, as the agent's is one of a compose "
            f"file; write {source.root / 'tests/Dockerfile'} or set verifier.environment.docker_image"
        )
    named = [(key, entry.service) for key, entry in _entries(toml)]
    named += [(key, hook.service) for key, hook in _hooks(toml)]
    known = [MAIN, *(name for name in services if name != MAIN)]
    problems += [
        f"{source.at(*key, 'service')} = {name!r} is no service of {path}, which has {', '.join(known)}"
        for key, name in named
        if name is not None and name not in known
    ]
    return problems


def _has_own_image(source: TaskSource) -> bool:
    own = source.toml.verifier_environment.docker_image is not None
    return own or any((source.root / name).is_file() for name in ("tests/Dockerfile", VERIFIER_COMPOSE_FILE))


def _of_verifiers_containers(source: TaskSource) -> list[str]:
    """What the compose file of a separate verifier does not hold."""
    path, toml = source.root / VERIFIER_COMPOSE_FILE, source.toml
    if not path.exists() or toml.verifier.mode != "separate" or toml.verifier_environment.docker_image is not None:
        return []
    try:
        said = services_in(path).get(MAIN, {})
    except ConfigError as err:
        return list(err.problems)
    if {"image", "build"} & said.keys() or (path.parent / "Dockerfile").is_file():
        return []
    return [
        f"{path} has neither image nor build for the service {MAIN!r}, which is the verifier's; write one, or "
        f"{path.parent / 'Dockerfile'}"
    ]


def _of_one_container(source: TaskSource) -> Iterator[str]:
    """What only a task of several containers may ask for."""
    alone = "but the task has one container"
    for key, entry in _entries(source.toml):
        if not entry.from_main:
            yield f"{source.at(*key)} comes from the service {entry.service!r}, {alone}"
    for at, hook in _hooks(source.toml):
        if hook.service != "main":
            yield f"{source.at(*at, 'service')} = {hook.service!r}, {alone}; leave it out"
        if hook.user is not None:
            yield (
                f"{source.at(*at, 'user')} = {hook.user!r}: collect_user_not_supported: a hook has its own user in "
                f"tasks of several containers only, {alone}; leave it out"
            )
