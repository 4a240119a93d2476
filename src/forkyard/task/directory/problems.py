"""From a refused task.toml to sentences that name the file, the line, the key, the value and the mend."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from forkyard.errors import ConfigError
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.lines import line_of, locate
from forkyard.task.directory.schema import TaskToml
from forkyard.values import nearest

SHOWN = 60

_COMPLAINTS = {
    "float_type": "is not a number; write it without quotes, for example 600.0",
    "int_type": "is not a whole number",
    "string_type": "is not text; put it in quotes",
    "bool_type": "is neither true nor false",
    "tuple_type": "is not a list; write it in [ ]",
    "dict_type": "is not a table",
    "model_type": "is not a table",
    "finite_number": "is not a finite number",
    "string_too_short": "must not be empty",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A file as far as it can be read: without the keys that `problems` tell of, and None when nothing is left."""

    toml: TaskToml | None
    lines: Mapping[Key, int]
    problems: tuple[str, ...] = ()
    bad: frozenset[Key] = frozenset()  # the keys that were left out


def read_as_far_as_possible(path: Path) -> Reading:
    """The file with one sentence for each mistake in it."""
    try:
        values, lines = parse_toml(path)
    except ConfigError as err:
        return Reading(None, {}, err.problems)
    try:
        return Reading(TaskToml.model_validate(values), lines)
    except ValidationError as err:
        errors = err.errors(include_url=False)
        told = sentences(path, lines, err, TaskToml, "the task format")
    bad = frozenset(
        _without(values, error["loc"][:-1] if error["type"] == "missing" else error["loc"]) for error in errors
    )
    try:
        return Reading(TaskToml.model_validate(values), lines, told, bad)
    except ValidationError:
        return Reading(None, lines, told, bad)


def parse_toml(path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    """The values of a TOML file and the lines of its keys. Raises ConfigError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text), locate(text)
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path} is not UTF-8 (byte {err.start}); save it as UTF-8") from None
    except OSError as err:
        raise ConfigError(f"{path} cannot be read: {err.strerror}") from None
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"{path} is not TOML: {_with_line(str(err), text)}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: its values are nested too deeply") from None


def sentences(
    path: Path, lines: Mapping[Key, int], error: ValidationError, model: type[BaseModel], what: str
) -> tuple[str, ...]:
    """One for each mistake that a model found in a file; `what` its keys are of."""
    return tuple(_sentence(path, lines, each, model, what) for each in error.errors(include_url=False))


def _without(values: dict[str, Any], key: Key) -> Key:
    """Take a key out of the values, or the whole list it lies in; which key that was."""
    table: Any = values
    for number, part in enumerate(key):
        inner = table.get(part) if isinstance(table, dict) else None
        if number == len(key) - 1 or not isinstance(inner, dict):
            if isinstance(table, dict):
                table.pop(part, None)
            return key[: number + 1]
        table = inner
    return key


def place(path: Path, key: Key, found: Mapping[Key, int]) -> str:
    """`file, line N`: where a key was written."""
    line = line_of(key, found)
    return f"{path}, line {line}" if line else str(path)


def dotted(key: Key) -> str:
    """A key as people write it: `verifier.collect[0].command`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def shown(value: Any) -> str:
    """A value as it would be written in the file, cut when long."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _with_line(message: str, text: str) -> str:
    if "at end of document" in message:
        return f"{message}, line {text.rstrip().count(chr(10)) + 1}"
    return message


def _sentence(path: Path, found: Mapping[Key, int], error: ErrorDetails, model: type[BaseModel], what: str) -> str:
    key = error["loc"]
    where = f"{place(path, key, found)}: {dotted(key)}"
    if error["type"] == "missing":
        return f"{where} is missing; it is required here"
    if error["type"] == "extra_forbidden":
        return f"{where} is not a key of {what}; {_suggestion(key, model)}"
    return f"{where} = {shown(error['input'])} {_complaint(error)}"


def _complaint(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than":
            return f"must be greater than {context['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "value_error":
            return str(context["error"])
        case kind:
            return _COMPLAINTS.get(kind, f"is refused: {error['msg']}")


def _suggestion(key: Key, whole: type[BaseModel]) -> str:
    model = _model_at(key[:-1], whole)
    names = sorted(model.model_fields) if model else []
    if near := nearest(str(key[-1]), names):
        return f"did you mean {near}?"
    return f"remove it, or use one of {', '.join(names)}"


def _model_at(path: Key, whole: type[BaseModel]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = whole
    for part in path:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) if model and part in model.model_fields else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The table type inside an annotation such as `Healthcheck | None` or `tuple[Author, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        return next((model for item in get_args(annotation) if (model := _model_in(item))), None)
    return None
