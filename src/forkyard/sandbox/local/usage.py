"""How much room sandboxes and images take on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forkyard.sandbox.local.box import Box


@dataclass(frozen=True, slots=True)
class Usage:
    """The bytes one sandbox or image takes: `own` would be free without it, `shared` others stand on as well.

    Blocks that a file system shares between copies (reflinks) are counted in each of them.
    """

    id: str
    name: str | None
    kind: str
    own: int
    shared: int


def disks_of(box: Box) -> set[str]:
    """Every disk a box keeps."""
    return set(box.stack) | ({box.disk} if box.disk else set())


def shares(boxes: Iterable[Box], sizes: Mapping[str, int], others: Iterable[Box] = ()) -> list[Usage]:
    """Share the sizes of disks out among the boxes that keep them, and others that nobody asked about."""
    boxes = list(boxes)
    keepers = Counter(disk for box in (*boxes, *others) for disk in disks_of(box))
    return [
        Usage(
            box.id,
            box.name,
            box.kind,
            own=sum(sizes[disk] for disk in disks_of(box) if keepers[disk] == 1),
            shared=sum(sizes[disk] for disk in disks_of(box) if keepers[disk] > 1),
        )
        for box in boxes
    ]
