"""What an image says of its processes, as the specification writes it and as `ImageConfig` holds it: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forkyard.image.oci.errors import ImageSourceError
from forkyard.sandbox import Healthcheck, ImageConfig

_NANOSECONDS = 1_000_000_000
_LONGEST = 1 << 62  # of a time in nanoseconds, and of a count


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of a configuration and the field it is; `read` raises ValueError, with what the key should hold."""

    name: str
    field: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def read_settings(said: Mapping[str, Any], what: str) -> ImageConfig:
    """The configuration that `what` has. Raises ImageSourceError for a key that holds something else."""
    found = {}
    for key in _KEYS:
        value = said.get(key.name)
        if not value:  # left out, null or empty, which all say nothing
            continue
        try:
            found[key.field] = key.read(value)
        except ValueError as error:
            raise ImageSourceError(f"the configuration of {what} has {key.name} that is no {error}") from None
    return ImageConfig(**found)


def written_settings(config: ImageConfig) -> dict[str, Any]:
    """The configuration as others read it, without the keys that say nothing."""
    written = {key.name: key.write(getattr(config, key.field)) for key in _KEYS}
    return {name: value for name, value in written.items() if value}


def _text(found: object) -> str:
    if not isinstance(found, str) or "\0" in found:
        raise ValueError("text")
    return found


def _directory(found: object) -> str:
    text = _text(found)
    return text if text.startswith("/") else f"/{text}"


def _texts(found: object) -> tuple[str, ...]:
    """A list of texts; a single text stands for a list of one."""
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(text, str) and "\0" not in text for text in found):
        raise ValueError("list of texts")
    return tuple(found)


def _variables(found: object) -> dict[str, str]:
    pairs = (line.partition("=") for line in _texts(found))
    return {name: value for name, equals, value in pairs if name and equals}


def _named_texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("object of texts")
    return dict(found)


def _names(found: object) -> tuple[str, ...]:
    """The keys of an object whose values are all empty, which is how the specification writes a set."""
    if not isinstance(found, dict):
        raise ValueError("object")
    return _texts(list(found))


def _healthcheck(found: object) -> Healthcheck | None:
    if not isinstance(found, dict):
        raise ValueError("object")
    test = _texts(found.get("Test") or [])
    times = {field: _number(found.get(name)) / _NANOSECONDS for name, field in _TIMES.items()}
    return Healthcheck(test, retries=_number(found.get("Retries")), **times) if test else None


def _number(found: object) -> int:
    found = found or 0
    if not isinstance(found, int) or not 0 <= found < _LONGEST:
        raise ValueError("healthcheck with times and a number of retries")
    return found


def _written_healthcheck(check: Healthcheck | None) -> dict[str, Any]:
    if check is None:
        return {}
    times = {name: round(getattr(check, field) * _NANOSECONDS) for name, field in _TIMES.items()}
    numbers = {**times, "Retries": check.retries}
    return {"Test": list(check.test), **{name: number for name, number in numbers.items() if number}}


def _set(names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    return {name: {} for name in names}


def _lines(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


_TIMES = {
    "Interval": "interval",
    "Timeout": "timeout",
    "StartPeriod": "start_period",
    "StartInterval": "start_interval",
}
_KEYS = (
    _Key("Env", "env", _variables, _lines),
    _Key("WorkingDir", "workdir", _directory, str),
    _Key("User", "user", _text, str),
    _Key("Entrypoint", "entrypoint", _texts, list),
    _Key("Cmd", "cmd", _texts, list),
    _Key("Labels", "labels", _named_texts, dict),
    _Key("ExposedPorts", "ports", _names, _set),
    _Key("Volumes", "volumes", _names, _set),
    _Key("StopSignal", "stop_signal", _text, str),
    _Key("Shell", "shell", _texts, list),
    _Key("Healthcheck", "healthcheck", _healthcheck, _written_healthcheck),
    _Key("OnBuild", "onbuild", _texts, list),
)
