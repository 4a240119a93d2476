"""Pages of lists: `limit` and `cursor` in, `nextCursor` beside the data out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from forkyard.server.envelope import Answer

LIMIT = 100
"""The most a page has; a higher `limit` means this."""
T = TypeVar("T")


def page(
    found: Sequence[T],
    limit: int,
    cursor_of: Callable[[T], str],
    data_of: Callable[[list[T]], Any] = lambda items: items,
) -> Answer:
    """A page of at most `limit` of what was found; to know whether there are more, find one more than that."""
    limit = min(limit, LIMIT)
    items = list(found[:limit])
    beside = {"nextCursor": cursor_of(items[-1])} if len(found) > limit else {}
    return Answer(data_of(items), beside=beside)
