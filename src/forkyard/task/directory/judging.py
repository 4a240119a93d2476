"""A task whose test.sh asks a model: the templates in `[verifier.env]` by which it says so, and what it gets.

`${ANTHROPIC_API_KEY}` and `${OPENAI_API_KEY}` are no variables of the host. Their place takes a credential that opens
nothing but the gateway, which listens in the verifier's own sandbox; the variables of its address come with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from forkyard.errors import ConfigError
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.templates import variable_of

if TYPE_CHECKING:
    from forkyard.model import Endpoint

KEYS: Mapping[str, tuple[str, ...]] = {
    "ANTHROPIC_API_KEY": ("messages",),
    "OPENAI_API_KEY": ("chat", "responses"),
}
"""The variables that stand for a model, and the dialects in which it is asked."""

JUDGE, MODEL = "REWARDKIT_JUDGE", "REWARDKIT_MODEL"
_PROGRAMS = ("claude", "claude-code", "codex", "fx", "jev")  # what a judge of Reward Kit can be beside a model
_ALIASES = {"claude": "claude-code"}  # by the name that Reward Kit knows the program


def asked_for(toml: TaskToml) -> tuple[str, ...]:
    """The variables by which the verifiers of a task ask for a model."""
    tables = [toml.verifier.env, *(step.verifier.env for step in toml.steps)]
    return tuple(name for name in KEYS if any(name in _families(table) for table in tables))


def wants_model(env: Mapping[str, str]) -> bool:
    """Whether a verifier with these variables, as they are written, asks for a model."""
    return not _families(env).isdisjoint(KEYS)


def _families(env: Mapping[str, str]) -> set[str | None]:
    return {variable_of(value) for value in env.values()}


def judge_env(env: Mapping[str, str], endpoint: Endpoint) -> dict[str, str]:
    """What a verifier gets whose own variables, as they are written, are `env`."""
    given: dict[str, str] = {}
    for name, value in env.items():
        family = variable_of(value)
        if family in KEYS:
            given |= {name: endpoint.key, **dict(_addresses(str(family), endpoint.base_url))}
    return given


def models_told(env: Mapping[str, str]) -> dict[str, str]:
    """The models that a verifier's variables name, by variable: those that are called so, and Reward Kit's judge."""
    named = {name: value for name, value in env.items() if name == "MODEL" or name.endswith("_MODEL")}
    judge = env.get(JUDGE, "")
    return named | ({JUDGE: judge} if judge and judge not in _PROGRAMS else {})


def checked_overrides(given: Mapping[str, str]) -> dict[str, str]:
    """What a run may say to verifiers, in the words they know. Raises ConfigError for anything else."""
    refused = [f"{name}={value}" for name, value in given.items() if name not in (JUDGE, MODEL)]
    if refused:
        rule = f"a run may tell verifiers {JUDGE} and {MODEL} and nothing else"
        raise ConfigError(*(f"--ve {pair} is refused: {rule}" for pair in refused))
    return {name: _ALIASES.get(value, value) if name == JUDGE else value for name, value in given.items()}


def _addresses(family: str, base: str) -> Iterator[tuple[str, str]]:
    if family == "ANTHROPIC_API_KEY":
        yield from (("ANTHROPIC_API_BASE", base), ("ANTHROPIC_BASE_URL", base))
    else:
        yield from (("OPENAI_API_BASE", f"{base}/v1"), ("OPENAI_BASE_URL", f"{base}/v1"))
