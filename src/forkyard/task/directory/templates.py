"""`${NAME}` and `${NAME:-default}`: values of a task's environment tables that the host's environment fills in."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Only a whole value is a template: `x${A}`, `${A}${B}` and `$${A}` are literal text.
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
# But in a header of a server of tools, which names its scheme beside the credential.
_WITHIN = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")


class MissingVariable(LookupError):
    """A template without a default names a variable the host does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def variable_of(value: str) -> str | None:
    """The host variable a value is taken from, or None for literal text."""
    match = _TEMPLATE.fullmatch(value)
    return match[1] if match else None


def is_filled_in(text: str) -> bool:
    """Whether a variable of the host is named anywhere in a text."""
    return _WITHIN.search(text) is not None


def variables_within(text: str) -> list[str]:
    """The host variables that are named in a text."""
    return [name for name, _ in _WITHIN.findall(text)]


def resolve_within(text: str, host: Mapping[str, str]) -> str:
    """A text with every variable that it names filled in. Raises MissingVariable as `resolve` does."""
    return _WITHIN.sub(lambda match: resolve(match[0], host), text)


def resolve(value: str, host: Mapping[str, str]) -> str:
    """The value with the host's variable in its place; the default stands in only for an unset one.

    Raises MissingVariable when there is neither.
    """
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    name, default = match.groups()
    if name in host:
        return host[name]
    if default is None:
        raise MissingVariable(name)
    return str(default)
