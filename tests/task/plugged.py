"""Functions that tests plug into tasks by their names."""

from __future__ import annotations

from typing import Any

import forkyard as vf


def lcs(task: Any, trace: vf.Trace) -> float:
    """In the place of a decorated method of that name."""
    return 0.125


async def exact_match(trace: vf.Trace) -> float:
    return float(trace.last_reply == "yes!")


def reply_length(trace: vf.Trace) -> float:
    return len(trace.last_reply) - 1


def enough(trace: vf.Trace) -> bool:
    return True


def wrong(sandbox: Any) -> float:
    return 1.0


NUMBER = 5
