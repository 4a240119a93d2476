"""What a model says of its keys: the annotation a key leads to, and how the text of a flag becomes its value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_TABLES = (Sequence, Set, Mapping, BaseModel)
SHORT = ("id", "type")  # `--env.agent.harness bash` is `--env.agent.harness.id bash`


def members(annotation: Any) -> tuple[Any, ...]:
    """The types that a value may have, the wrapping of Annotated and unions taken off."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(found for item in get_args(annotation) for found in members(item))
    return (annotation,)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model among the types of an annotation."""
    for item in members(annotation):
        if isinstance(item, type) and issubclass(item, BaseModel):
            return item
    return None


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the names that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def mapped_to(annotation: Any) -> Any:
    """What the values of a mapping are, for an annotation that is one; None otherwise."""
    for item in members(annotation):
        if get_origin(item) in (dict, Mapping):
            return get_args(item)[1]
        if item in (dict, Mapping):
            return Any
    return None


def short_of(model: type[BaseModel]) -> str | None:
    """The key that a plain word sets in place of a whole table."""
    return next((name for name in SHORT if name in fields_of(model)), None)


def takes_any_key(model: type[BaseModel]) -> bool:
    """Whether the model takes keys it does not name."""
    return model.model_config.get("extra") == "allow"


def meant_key(model: type[BaseModel], key: str) -> str | None:
    """The key that one is likely misspelt for, where a model that takes any tells (by a method `meant`)."""
    meant: Callable[[str], str | None] | None = getattr(model, "meant", None)
    return meant(key) if meant is not None else None


def is_switch(annotation: Any) -> bool:
    """Whether the key is set by its flag alone."""
    return bool in members(annotation)


@dataclass(frozen=True, slots=True)
class Unread(Exception):
    """A text cannot be read as what it is to be."""

    why: str


def from_text(text: str, annotation: Any) -> Any:
    """The value of a flag's text; pydantic turns it into a number or a path. Raises Unread."""
    kinds = members(annotation)
    if text == "null" and NoneType in kinds:
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    tables = [kind for kind in kinds if _is_table(kind)]
    if tables and (text[:1] in ("[", "{") or not (_takes_words(kinds) or any(map(_is_list, tables)))):
        try:
            return json.loads(text)
        except ValueError as err:
            raise Unread(f"{text!r} is to be JSON, and is not: {err}") from None
    if Any in kinds or object in kinds:
        return loose(text)
    return text


def loose(text: str) -> Any:
    """The JSON that a text is, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def named(annotation: Any) -> str:
    """The types as a help page shows them."""
    kinds = [kind for kind in members(annotation) if kind is not NoneType]
    return " or ".join(dict.fromkeys(_name(kind) for kind in kinds))


def _is_table(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, _TABLES) and not issubclass(origin, str | bytes)


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return issubclass(origin, Sequence | Set)  # a plain word is left to the model: some take `2:9` for a list


def _takes_words(kinds: tuple[Any, ...]) -> bool:
    return any(not _is_table(kind) and kind is not NoneType for kind in kinds)


def _name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(str(item) for item in get_args(kind))
    known = {str: "TEXT", int: "N", float: "X", bool: "", Any: "VALUE"}
    if kind in known:
        return known[kind]
    if _is_table(kind):
        return "JSON"
    return str(getattr(kind, "__name__", kind)).upper()
