"""What is wrong with what was sent, in words: what is allowed, and what it was instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from forkyard.values import printable

_SHOWN, _PLACE = 60, 200  # characters of a text that was sent, and of where it stood
_PATTERN = "spelling"
_SECRET = {"env", "headers", "password", "secret_access_key", "access_key_id", "registry_auth", "token"}
_KINDS = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
_WORDS = {
    "missing": "is missing",
    _PATTERN: "must be {words}, not {sent}",
    "literal_error": "must be {expected}, not {sent}",
    "greater_than_equal": "must be {ge} or more, not {sent}",
    "less_than_equal": "must be {le} or less, not {sent}",
    "greater_than": "must be more than {gt}, not {sent}",
    "less_than": "must be less than {lt}, not {sent}",
    "finite_number": "must be a finite number, not {sent}",
    "string_too_short": "must not be shorter than {min_length} characters",
    "string_too_long": "must not be longer than {max_length} characters",
    "too_short": "must not have less than {min_length} in it, and has {actual_length}",
    "too_long": "must not have more than {max_length} in it",
    "union_tag_invalid": "must have a {discriminator} of {expected_tags}, not {tag!r:.60}",
    "union_tag_not_found": "must be an object with a {discriminator}",
    "json_invalid": "is no JSON: {error}",
}


@dataclass(frozen=True, slots=True)
class Spelled:
    """The constraint of a text to a pattern, which refusals tell in words: "must be <words>"."""

    pattern: str  # begins with "^", as the schema has it
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What checks it."""
        # "$" is also true before a line end that is the last character.
        regex = re.compile(re.sub(r"\$$", r"\\Z", self.pattern))

        def checked(text: str) -> str:
            if not regex.match(text):
                raise PydanticCustomError(_PATTERN, "{words}", {"words": self.words})
            return text

        return core_schema.no_info_after_validator_function(checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The pattern for programs."""
        return {**handler(schema), "pattern": self.pattern, "description": self.words}


def refused(error: ValidationError, whole: str, most: int = 5) -> str:
    """The mistakes in what was read, `whole`, as "the body": a sentence for each of the first few."""
    problems = [_told(each, whole) for each in error.errors(include_url=False)]
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return printable("; ".join(problems[:most]) + more)


def _told(error: ErrorDetails, whole: str) -> str:
    place = ".".join(str(part) or "''" for part in error["loc"] if part != "[key]")[:_PLACE] or whole
    said = _said(error)
    return f"{place} {said}" if said else f"{place}: {error['msg'].removeprefix('Value error, ')}"


def _said(error: ErrorDetails) -> str | None:
    """What must be, and what was sent; None when the error's own text says it best."""
    kind, sent = error["type"], _shown(error["input"], error["loc"])
    if words := _WORDS.get(kind):
        return words.format(sent=sent, **{name: _round(fact) for name, fact in error.get("ctx", {}).items()})
    what = _KINDS.get(kind.removesuffix("_parsing").removesuffix("_type").removesuffix("_from_float"))
    return what and f"must be {what}, not {sent}"


def _round(fact: Any) -> Any:
    return int(fact) if isinstance(fact, float) and fact.is_integer() else fact


def _shown(sent: Any, place: Sequence[int | str]) -> str:
    """What was sent, short; of what may be a secret its kind alone."""
    if sent is None or isinstance(sent, bool):
        return {None: "null", True: "true", False: "false"}[sent]
    if isinstance(sent, Mapping):
        return "an object"
    if isinstance(sent, list | tuple | set):
        return "a list"
    if _SECRET & {*map(str, place)}:
        return "a text" if isinstance(sent, str) else "a number"
    if isinstance(sent, str):
        return repr(sent) if len(sent) <= _SHOWN else f"{sent[:_SHOWN]!r}... ({len(sent)} characters)"
    return f"{sent!r:.60}"
