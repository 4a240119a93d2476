"""What a line has cost in all: its own rollout, and the failed ones before it that left no line of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from forkyard.values import number

_EARLIER = ("earlier_tries", "earlier_attempts")  # in `info`: of the agent within its episode, and of whole episodes


def total_cost(record: Mapping[str, Any]) -> float | None:
    """In USD, of a line or its `cost_usd` and `info`; None when nothing of it has a price. Damage adds nothing."""
    earlier = [cost for each in _earlier(record) if (cost := number(each.get("cost_usd")))]  # 0 is no call at all
    own = number(record.get("cost_usd"))
    costs = earlier if own is None else [own, *earlier]
    return math.fsum(costs) if costs else None


def _earlier(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    info = record.get("info")
    known = info if isinstance(info, dict) else {}
    for name in _EARLIER:
        listed = known.get(name)
        yield from (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, dict))
