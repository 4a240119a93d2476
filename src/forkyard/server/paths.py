"""What stands at which path, found part by part, however many paths there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Node(Generic[T]):
    """What goes on from one place of the tree."""

    fixed: dict[str, _Node[T]] = field(default_factory=dict)
    open: _Node[T] | None = None  # whatever the next part is
    here: tuple[T, list[str]] | None = None  # what stands here, and the names of the open parts on the way


class Paths(Generic[T]):
    """Things by paths such as "/api/disks/{id}", where a part in braces stands for any that is not empty."""

    def __init__(self, things: Iterable[tuple[str, T]]) -> None:
        self._root: _Node[T] = _Node()
        for path, thing in things:
            self._add(path, thing)

    def _add(self, path: str, thing: T) -> None:
        node, names = self._root, []
        for part in path.split("/"):
            if part.startswith("{"):
                names.append(part.strip("{}"))
                node.open = node = node.open or _Node()
            else:
                node = node.fixed.setdefault(part, _Node())
        node.here = thing, names

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """What stands at a path, and its open parts by their names; a path that is written out goes first."""
        parts = path.split("/")
        found = _found(self._root, parts, 0, ())
        if found is None:
            return None
        (thing, names), values = found
        return thing, dict(zip(names, values, strict=True))


def _found(
    node: _Node[T], parts: list[str], at: int, values: tuple[str, ...]
) -> tuple[tuple[T, list[str]], tuple[str, ...]] | None:
    if at == len(parts):
        return (node.here, values) if node.here is not None else None
    part = parts[at]
    further = node.fixed.get(part)
    if further is not None and (found := _found(further, parts, at + 1, values)) is not None:
        return found
    if node.open is not None and part:
        return _found(node.open, parts, at + 1, (*values, part))
    return None
