"""Dictionaries whose keys can be read as attributes: plain JSON on the record, objects in the code of a task."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Fields(dict[str, Any]):
    """A dictionary whose keys are attributes too; those of `OPTIONAL` are None when they are missing."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self.OPTIONAL:
            return None
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self) or 'nothing'}")

    def model_copy(self, *, update: dict[str, Any] | None = None) -> Self:
        """A copy with other fields, spelled as pydantic spells it."""
        other = type(self).__new__(type(self))
        other.update(self, **(update or {}))
        return other

    def model_dump(self) -> dict[str, Any]:
        """The plain dictionary."""
        return dict(self)
