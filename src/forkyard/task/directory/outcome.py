"""What the stages of a task come to: the reward of all of them by the task's strategy.

    mean    each number's mean over the stages that were played; a stage that lacks it counts as 0
    final   what the last stage that was played brought

A stage that was played and has no score leaves the whole without one: else an agent could do well in one stage and
break the verifier of the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forkyard.task.directory.reward import Verdict
from forkyard.trace import Status, Trace

NOT_RUN = "NOT_RUN"
PRIMARY = "reward"


@dataclass(frozen=True, slots=True)
class Played:
    """What one stage brought."""

    name: str
    trace: Trace

    @property
    def numbers(self) -> dict[str, float]:
        """Its reward, as "reward", and its metrics; nothing without a score."""
        trace = self.trace
        if trace.status is not Status.SCORED:
            return {}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return metrics if trace.reward is None else {**metrics, PRIMARY: trace.reward}


def told(names: Sequence[str], played: Sequence[Played]) -> list[dict[str, Any]]:
    """Each stage as it goes on the record, those that were not played among them."""
    found = {stage.name: stage.trace for stage in played}
    return [_entry(name, found.get(name)) for name in names]


def total(played: Sequence[Played], strategy: Literal["mean", "final"]) -> Verdict:
    """The verdict on the whole."""
    unscored = next((stage for stage in played if stage.trace.status is not Status.SCORED), None)
    if strategy == "final":
        unscored = played[-1] if played and played[-1].trace.status is not Status.SCORED else None
    if not played or unscored is not None:
        return _without_score(unscored)
    numbers = dict(played[-1].numbers) if strategy == "final" else _means([stage.numbers for stage in played])
    primary = numbers.pop(PRIMARY, None)
    if primary is None:
        reason = "no stage brought a primary reward"
        return Verdict(Status.SCORED, "scored_without_primary", reason, metrics=numbers)
    return Verdict(Status.SCORED, "scored", primary=primary, metrics=numbers)


def _means(brought: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for numbers in brought for name in numbers)
    return {name: math.fsum(numbers.get(name, 0.0) for numbers in brought) / len(brought) for name in names}


def _without_score(stage: Played | None) -> Verdict:
    if stage is None:
        return Verdict(Status.INDETERMINATE, "stage_not_scored", "no stage was played")
    status = stage.trace.status or Status.INDETERMINATE
    return Verdict(status, "stage_not_scored", f"stage {stage.name!r} has no score: {stage.trace.reason}")


def _entry(name: str, trace: Trace | None) -> dict[str, Any]:
    if trace is None:
        return {"name": name, "status": NOT_RUN, "reward": None}
    return {
        "name": name,
        "status": trace.status,
        "reward": trace.reward if trace.status is Status.SCORED else None,
        "metrics": dict(trace.metrics),
        "reason": trace.reason,
        "stop": trace.stop_condition,
        "timeout": trace.is_timeout,
        "verifier": dict(trace.verifier),
        "info": dict(trace.info),
    }
