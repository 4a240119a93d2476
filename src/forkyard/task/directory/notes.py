"""What a reader notices about a task that runs all the same."""

from __future__ import annotations

from pathlib import Path

from forkyard.task.directory.schema import ArtifactTable, TaskToml


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


def notes_of(root: Path, toml: TaskToml, flaw: str | None) -> tuple[str, ...]:
    """One sentence for each thing a user should know before trusting the results."""
    environment = toml.environment
    notes = [f"tests/test.sh: {flaw}"] if flaw else []
    if (root / "tests/Dockerfile").exists():
        notes.append("tests_dockerfile_not_built: tests/Dockerfile is not built when the verifier shares the sandbox")
    if toml.verifier.environment is not None and toml.verifier.mode == "shared":
        notes.append("verifier.environment is not used when the verifier shares the agent's sandbox")
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb"), ("allow_internet", "network_mode")):
        if getattr(environment, old) is not None:
            notes.append(f"environment.{old} is an older spelling; write environment.{new}")
    if environment.skills_dir is not None:
        notes.append("environment.skills_dir is not handed to the agent by this version")
    if toml.artifacts:
        notes.append("artifacts are not collected by this version: what /logs holds is kept, /logs/artifacts included")
    return (*notes, *_clashes(toml.artifacts))


def _clashes(artifacts: tuple[ArtifactTable, ...]) -> list[str]:
    seen: set[str] = set()
    notes = []
    for entry in artifacts:
        place = (entry.destination or entry.source).strip("/")
        if place in seen:
            notes.append(f"artifacts: two entries go to {place!r}; the first one wins")
        seen.add(place)
    return notes
