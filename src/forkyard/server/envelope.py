"""What every answer of the control plane looks like, and the error that becomes one.

A success is `{"success": true, "data": ...}`, a refusal `{"success": false, "error": "<text>", "code": "<word>"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from forkyard.errors import ForkyardError
from forkyard.values import strict_json

NOTHING: Any = object()
"""The data of an answer that has none, not even null."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers. 204 has no body; `beside` stands beside `data`, as `nextCursor` does."""

    data: Any = NOTHING  # pydantic models, dataclasses and what JSON has, nested; models by their aliases
    status: int = 200
    beside: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class ApiError(ForkyardError):
    """A request is refused with a documented status and a text that says what to do; `code` is for programs."""

    def __init__(self, status: int, text: str, code: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after


def not_here(what: str) -> ApiError:
    """The refusal of what means nothing on one machine: 501, by name."""
    return ApiError(501, f"{what}: not offered by a server of your own", "not_implemented")


def success_body(answer: Answer) -> bytes:
    """The body of an answer, as JSON."""
    whole: dict[str, Any] = {"success": True}
    if answer.data is not NOTHING:
        whole["data"] = answer.data
    return as_json(whole | dict(answer.beside))


def error_body(error: ApiError) -> bytes:
    """The body of a refusal, as JSON."""
    whole: dict[str, Any] = {"success": False, "error": str(error)}
    if error.code is not None:
        whole["code"] = error.code
    return as_json(whole)


def as_json(value: Any) -> bytes:
    """Strict JSON of whatever an answer may have."""
    try:
        return to_json(value, by_alias=True, inf_nan_mode="null")
    except PydanticSerializationError:  # of half surrogate pairs, as names of files may have
        return strict_json(to_jsonable_python(value, by_alias=True)).encode()
