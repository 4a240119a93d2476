"""What a reader notices about a task that runs all the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from forkyard.task.directory.contradictions import VERIFIER_COMPOSE_FILE
from forkyard.task.directory.environment import Environment
from forkyard.task.directory.schema import DEFAULT_SCHEMA, ArtifactTable, TaskToml


def flaw_of(script: bytes) -> str | None:
    """What keeps a script from being executed by itself, as far as its first line tells."""
    first = script.split(b"\n", 1)[0]
    if first.startswith(b"#!"):
        return (
            "its first line ends in CR LF, so the interpreter is not found: save it with LF"
            if first.endswith(b"\r")
            else None
        )
    if script.startswith(b"\x7fELF"):
        return None
    return "it has no #! line, so nothing says which interpreter runs it: begin it with #!/bin/bash"


def notes_of(root: Path, toml: TaskToml, flaws: Mapping[str, str | None]) -> tuple[str, ...]:
    """One sentence for each thing a user should know before trusting the results; `flaws` are those of scripts."""
    environment = toml.environment
    notes = [f"{script}: {flaw}" for script, flaw in flaws.items() if flaw]
    if not toml.schema_is_known:
        notes.append(f"schema_version {toml.schema_name!r} is not known here: it is read as {DEFAULT_SCHEMA}")
    apart = toml.verifier.mode == "separate"
    if (root / "tests/Dockerfile").exists() and (not apart or toml.verifier_environment.docker_image):
        why = "an image is named for the verifier" if apart else "the verifier shares the sandbox"
        notes.append(f"tests_dockerfile_not_built: tests/Dockerfile is not built when {why}")
    if (root / VERIFIER_COMPOSE_FILE).exists() and (not apart or toml.verifier_environment.docker_image):
        why = "an image is named for the verifier" if apart else "the verifier shares the sandbox"
        notes.append(f"{VERIFIER_COMPOSE_FILE} is not brought up when {why}")
    if toml.verifier.environment is not None and toml.verifier.mode == "shared":
        notes.append("verifier.environment is not used when the verifier shares the agent's sandbox")
    for table, name in ((environment, "environment"), (toml.verifier.environment, "verifier.environment")):
        notes += _older(table, name) if table else []
    if environment.skills_dir is not None:
        notes.append("environment.skills_dir is not handed to the agent by this version")
    for step in toml.steps or (None,):
        notes += _clashes(toml.artifacts + (step.artifacts if step else ()))
    return tuple(dict.fromkeys(notes))


def _older(table: Environment, name: str) -> list[str]:
    spellings = (("memory", "memory_mb"), ("storage", "storage_mb"), ("allow_internet", "network_mode"))
    return [
        f"{name}.{old} is an older spelling; write {name}.{new}"
        for old, new in spellings
        if getattr(table, old) is not None
    ]


def _clashes(artifacts: tuple[ArtifactTable, ...]) -> list[str]:
    """Entries whose places on the host are equal, or lie within each other."""
    taken: list[PurePosixPath] = []
    notes = []
    for entry in artifacts:
        place = PurePosixPath((entry.destination or entry.source).strip("/"))
        if place in taken:
            notes.append(f"artifacts: two entries go to {str(place)!r}; the first one wins")
        elif other := next((each for each in taken if each in place.parents or place in each.parents), None):
            notes.append(
                f"artifacts: the places {str(other)!r} and {str(place)!r} lie within each other; the first wins"
            )
        taken.append(place)
    return notes
