"""From settings to a model, every mistake told at once with its place and the nearest name that is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from forkyard.cli.dotted.arguments import Bare, Key, Setting
from forkyard.cli.dotted.types import (
    Unread,
    fields_of,
    from_text,
    is_switch,
    mapped_to,
    meant_key,
    model_of,
    short_of,
    takes_any_key,
)
from forkyard.errors import ConfigError
from forkyard.values import first_names, nearest, printable

M = TypeVar("M", bound=BaseModel)
SHOWN = 60
_SAID = dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), 'should be a list, as \'["a", "b"]\'')


class _Mistake(Exception):
    """One sentence about one setting."""


def fill(model: type[M], settings: Iterable[Setting]) -> M:
    """The model with these values, later ones in the place of earlier. Raises ConfigError with every mistake."""
    values: dict[str, Any] = {}
    places: dict[Key, str] = {}
    problems: list[str] = []
    for setting in settings:
        try:
            for leaf in _leaves(model, setting):
                _put(values, leaf.key, leaf.value)
                places[leaf.key] = leaf.place
        except _Mistake as mistake:
            problems.append(f"{_where(setting)}: {mistake}")
    try:
        filled = model.model_validate(values)
    except ValidationError as err:
        problems += [_sentence(error, places) for error in err.errors(include_url=False)]
    if problems:
        raise ConfigError(*dict.fromkeys(printable(problem) for problem in problems))
    return filled


def flag(key: Iterable[str]) -> str:
    """A key as a flag: `--env.agent.max-turns`."""
    return "--" + ".".join(part.replace("_", "-") for part in key)


def _leaves(model: type[BaseModel], setting: Setting) -> Iterator[Setting]:
    """The setting with its value read, a table as one setting for each of its keys."""
    key, annotation, negated = _resolved(model, setting)
    value = setting.value
    if setting.text:
        key, annotation = _at_length(key, annotation, value)
        if isinstance(value, Bare) and not is_switch(annotation):
            raise _Mistake("a value is missing")
        try:
            value = from_text(value, annotation) if model_of(annotation) is None else _table(value)
        except Unread as err:
            raise _Mistake(err.why) from None
        value = value is not True if negated else value
    yield from _spread(key, annotation, value, setting.place)


def _at_length(key: Key, annotation: Any, text: str) -> tuple[Key, Any]:
    """Where a word leads that stands for a whole table: to the key it is short for, where `null` is a name."""
    inner = model_of(annotation)
    short = short_of(inner) if inner is not None else None
    if inner is None or short is None or text.startswith("{") or isinstance(text, Bare):
        return key, annotation
    return (*key, short), fields_of(inner)[short].annotation


def _table(text: str) -> Any:
    """The value of a flag that names a whole table: JSON, null where no word may stand for it, or a word."""
    if text == "null":
        return None
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as err:
            raise Unread(f"{text!r} is to be JSON, and is not: {err}") from None
    return text


def _spread(key: Key, annotation: Any, value: Any, place: str) -> Iterator[Setting]:
    model = model_of(annotation)
    if model is not None and isinstance(value, str) and (short := short_of(model)):
        yield Setting((*key, short), value, place)
    elif model is not None and isinstance(value, Mapping):
        if not value:
            yield Setting(key, {}, place)
        for name, inner in value.items():
            below = Setting((str(name).replace("-", "_"),), inner, place)
            for leaf in _leaves(model, below):
                yield Setting((*key, *leaf.key), leaf.value, place)
    else:
        yield Setting(key, value, place)


def _resolved(model: type[BaseModel], setting: Setting) -> tuple[Key, Any, bool]:
    """The key as the model has it, what it leads to, and whether it was said in the negative (`--no-shuffle`)."""
    key = setting.key
    try:
        return key, annotation_at(model, key), False
    except _Mistake:
        if not (setting.text and isinstance(setting.value, str)):
            raise
        for at in {0, len(key) - 1}:
            if key[at].startswith("no_"):
                plain = (*key[:at], key[at].removeprefix("no_"), *key[at + 1 :])
                try:
                    annotation = annotation_at(model, plain)
                except _Mistake:
                    continue
                if is_switch(annotation):
                    return plain, annotation, True
        raise


def annotation_at(model: type[BaseModel], key: Key) -> Any:
    """What a key leads to. Raises _Mistake for one that leads nowhere."""
    annotation: Any = model
    for depth, part in enumerate(key):
        inner = model_of(annotation)
        if inner is not None:
            if part in fields_of(inner):
                annotation = fields_of(inner)[part].annotation
            elif takes_any_key(inner):
                if near := meant_key(inner, part):
                    raise _Mistake(f"there is no such option; did you mean {flag((*key[:depth], near))}?")
                return Any
            else:
                raise _Mistake(_unknown(model, key, depth, inner))
        elif (values := mapped_to(annotation)) is not None:
            annotation = values
        elif annotation is Any:
            return Any
        else:
            raise _Mistake(f"{flag(key[:depth])} is one value and has no {part.replace('_', '-')}")
    return annotation


def _unknown(root: type[BaseModel], key: Key, depth: int, model: type[BaseModel]) -> str:
    known = list(fields_of(model))
    elsewhere = sorted((other for other in all_keys(root) if other[-1] == key[-1]), key=len)
    if elsewhere:
        return f"there is no such option; did you mean {' or '.join(flag(other) for other in elsewhere[:3])}?"
    near = nearest(key[depth], known)
    if near:
        return f"there is no such option; did you mean {flag((*key[:depth], near, *key[depth + 1 :]))}?"
    inside = f" in {flag(key[:depth])}" if depth else ""
    return f"there is no such option{inside}; known are {first_names([flag((*key[:depth], name)) for name in known])}"


def all_keys(model: type[BaseModel], above: Key = ()) -> Iterator[Key]:
    """Every key of a model that is no table, in order."""
    for name, field in fields_of(model).items():
        inner = model_of(field.annotation)
        if inner is None:
            yield (*above, name)
        else:
            yield from all_keys(inner, (*above, name))


def _put(values: dict[str, Any], key: Key, value: Any) -> None:
    for part in key[:-1]:
        below = values.get(part)
        if not isinstance(below, dict):
            below = values[part] = {}
        values = below
    held = values.get(key[-1])
    if value == {} and isinstance(held, dict):
        return
    values[key[-1]] = value


def _where(setting: Setting) -> str:
    """A flag as it was typed; a key in a file with its line."""
    if setting.text:
        return setting.place
    return f"{setting.place}: {'.'.join(setting.key)}"


def _sentence(error: ErrorDetails, places: Mapping[Key, str]) -> str:
    path = tuple(str(part) for part in error["loc"])
    said = _SAID.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    given = error["input"]
    for length in range(len(path), 0, -1):
        place = places.get(path[:length])
        if place is not None:
            inside = "".join(f"[{part}]" for part in path[length:])
            where = place if place.startswith("-") else f"{place}: {'.'.join(path[:length])}"
            return f"{where}{inside}: {_lower(said)}{_given(given)}"
    return f"{flag(path)}: {_lower(said)}" if path else said


def _given(value: Any) -> str:
    if isinstance(value, dict | list | BaseModel):
        return ""
    text = repr(value)
    return f", not {text if len(text) <= SHOWN else text[:SHOWN] + '...'}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
