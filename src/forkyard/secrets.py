"""Keys are kept out of every text by their value: no prefix or pattern of a vendor is needed to know one."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import quote

MARK = "[redacted]"
SHORTEST_SECRET = 8
"""Shorter values are placeholders ("none", "EMPTY"). They turn up in innocent text: cutting them out would ruin it."""


def is_secret(value: str | None) -> bool:
    """Whether a value is to be kept out of texts: a short one opens nothing, and nothing that holds it is a leak."""
    return value is not None and len(value) >= SHORTEST_SECRET


class Secrets:
    """The values that must appear nowhere; its repr counts them.

    Found as they are and as JSON (to any usual depth), URLs, HTML and Python's repr write them. A value printed in
    pieces, reversed or encoded on purpose is not found.
    """

    def __init__(self, *values: str | None) -> None:
        self._values = frozenset(value for value in values if value is not None and is_secret(value))
        forms = {form for value in self._values for form in _written(value)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __or__(self, other: Secrets) -> Secrets:
        return Secrets(*self._values, *other._values)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} values)"

    def hide(self, text: str) -> str:
        """`text` with every secret replaced by a mark."""
        return self._pattern.sub(MARK, text) if self._pattern else text


def redact(value: Any, secrets: Secrets) -> Any:
    """A text, or a record of nested dicts and lists, with every secret replaced, in keys too."""
    if isinstance(value, str):
        return secrets.hide(value)
    if isinstance(value, dict):
        return {redact(key, secrets): redact(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, secrets) for item in value]
    return value


def _written(value: str) -> set[str]:
    forms = {value, quote(value, safe=""), html.escape(value), repr(value)[1:-1], value.replace("/", "\\/")}
    for ascii_only in (True, False):
        inner = value
        for _ in range(3):  # a record holds tool arguments, which are JSON and may themselves hold JSON
            inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
            forms.add(inner)
    return forms
