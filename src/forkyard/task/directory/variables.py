"""The environment tables of a task with the host's variables filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from forkyard.secrets import Secrets
from forkyard.task.directory.judging import KEYS
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.templates import (
    MissingVariable,
    is_filled_in,
    resolve,
    resolve_within,
    variable_of,
    variables_within,
)

VARIABLE_LIMIT = 128 << 10  # bytes of one NAME=value, its end included, that Linux takes


@dataclass(frozen=True, slots=True)
class Variables:
    """What the processes of each phase get. `secrets` are the values the host gave: they show on no record."""

    environment: Mapping[str, str]
    verifier: Mapping[str, str]
    solution: Mapping[str, str]
    apart: Mapping[str, str]  # of a separate verifier's sandbox
    secrets: Secrets
    steps: tuple[Mapping[str, str], ...] = ()  # of the verifier of each step, the task's among them
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # with the host's variables, by tool server

    def of_verifier(self, stage: int) -> Mapping[str, str]:
        """What the verifier of a stage gets, over the environment's."""
        return self.steps[stage] if self.steps else self.verifier


def fill_in(toml: TaskToml, host: Mapping[str, str], place: Callable[..., str], problems: list[str]) -> Variables:
    """Resolve every template; what the host lacks is added to `problems`."""
    tables: dict[Key, Mapping[str, str]] = {
        ("environment",): toml.environment.env,
        ("verifier",): toml.verifier.env,
        ("solution",): toml.solution.env,
        **{("steps", number, "verifier"): step.verifier.env for number, step in enumerate(toml.steps)},
    }
    for key, table in tables.items():
        if key[-1] == "verifier":
            tables[key] = {name: value for name, value in table.items() if variable_of(value) not in KEYS}
    if toml.verifier_environment is not toml.environment:
        tables["verifier", "environment"] = toml.verifier_environment.env
    filled = {key: _filled(values, host, partial(place, *key, "env"), problems) for key, values in tables.items()}
    names = [variable_of(value) for values in tables.values() for value in values.values()]
    asked = {server.name: server.headers for server in toml.environment.mcp_servers}
    names += [name for headers in asked.values() for text in headers.values() for name in variables_within(text)]
    verifier = filled["verifier",]
    return Variables(
        environment=filled["environment",],
        verifier=verifier,
        solution=filled["solution",],
        apart=filled.get(("verifier", "environment"), filled["environment",]),
        secrets=Secrets(*(host.get(name) for name in names if name is not None)),
        steps=tuple({**verifier, **filled["steps", number, "verifier"]} for number in range(len(toml.steps))),
        headers={name: _headers(name, headers, host, place, problems) for name, headers in asked.items()},
    )


def _headers(
    server: str, headers: Mapping[str, str], host: Mapping[str, str], place: Callable[..., str], problems: list[str]
) -> dict[str, str]:
    """The headers of a tool server in which a variable of the host is named, filled in."""
    filled = {}
    for name, text in headers.items():
        try:
            if is_filled_in(text):
                filled[name] = resolve_within(text, host)
        except MissingVariable as err:
            problems.append(
                f"{place('environment', 'mcp_servers')}: the header {name} of {server} needs the host's variable "
                f"{err.name}, which is not set"
            )
    return filled


def _filled(
    values: Mapping[str, str], host: Mapping[str, str], place: Callable[[str], str], problems: list[str]
) -> dict[str, str]:
    filled = {}
    for name, value in values.items():
        try:
            text = resolve(value, host)
        except MissingVariable as err:
            problems.append(
                f"{place(name)} needs the host's variable {err.name}, which is not set; "
                f"set it, or give a default: ${{{err.name}:-...}}"
            )
            continue
        if len(f"{name}={text}".encode("utf-8", "surrogateescape")) >= VARIABLE_LIMIT:
            problems.append(f"{place(name)} is longer than the {VARIABLE_LIMIT} bytes Linux allows")
        filled[name] = text
    return filled
