"""What a line has cost in all: its own rollout, and the failed ones before it that left no line of their own.

Those stand in `info["earlier_attempts"]`: one entry each, whether the agent or the whole episode was played again. A
rollout that is graded again has what its line cost before in `info["cost_before_usd"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from forkyard.trace.calls import Usage
from forkyard.trace.trace import Trace
from forkyard.values import number

_EARLIER = "earlier_attempts"
COST_BEFORE = "cost_before_usd"
_OLD = "earlier_tries"  # where older lines have those of the agent


def total_cost(record: Mapping[str, Any]) -> float | None:
    """In USD, of a line or its `cost_usd` and `info`; None when nothing of it has a price. Damage adds nothing."""
    earlier = [cost for each in _earlier(record) if (cost := number(each.get("cost_usd")))]  # 0 is no call at all
    own = number(record.get("cost_usd"))
    costs = earlier if own is None else [own, *earlier]
    return math.fsum(costs) if costs else None


def new_cost(record: Mapping[str, Any]) -> float:
    """In USD, what a line cost its own run: in all, but for what was spent before that took the rollout over."""
    info = record.get("info")
    before = number(info.get(COST_BEFORE)) if isinstance(info, dict) else None
    return max(0.0, (total_cost(record) or 0.0) - (before or 0.0))


def attempts(record: Mapping[str, Any]) -> int:
    """How many attempts a line is the last of, those that left no line of their own included."""
    return 1 + sum(1 for _ in _earlier(record))


def keep_attempts(
    trace: Trace, of: Literal["agent", "episode"], failed: Sequence[tuple[str | None, Sequence[Trace]]]
) -> None:
    """Put earlier attempts on the record of the last one: why each failed, and what its rollouts used and cost.

    Attempts at an episode come before those its last agent needed within it.
    """
    if failed:
        before = trace.info.get(_EARLIER)
        entries = [{"of": of, "reason": reason, **_used(traces)} for reason, traces in failed]
        trace.info[_EARLIER] = [*entries, *(before if isinstance(before, list) else ())]


def _used(traces: Sequence[Trace]) -> dict[str, Any]:
    """By these rollouts themselves, and with what failed before them."""
    usage = Usage()
    for trace in traces:
        if COST_BEFORE in trace.info:
            continue  # its agent's part is another run's
        usage.add(trace.usage)
        for said in (each.get("usage") for each in _earlier({"info": trace.info})):
            counts = said if isinstance(said, dict) else {}
            usage.add(Usage(**{name: int(number(counts.get(name)) or 0) for name in asdict(usage)}))
    costs = [_new({"cost_usd": trace.cost_usd, "info": trace.info}) for trace in traces]
    known = [cost for cost in costs if cost is not None]
    return {"usage": asdict(usage), "cost_usd": math.fsum(known) if known else None}


def _new(record: Mapping[str, Any]) -> float | None:
    return new_cost(record) or None if COST_BEFORE in record["info"] else total_cost(record)


def _earlier(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    info = record.get("info")
    known = info if isinstance(info, dict) else {}
    for name in (_EARLIER, _OLD):
        listed = known.get(name)
        yield from (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, dict))
