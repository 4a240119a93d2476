"""What a report takes from a line: read from records of any age and in any state, and small enough to keep."""

from __future__ import annotations

import math
import statistics
import sys
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forkyard.trace import SINGLE_AGENT, Status
from forkyard.trace.costs import total_cost
from forkyard.values import number, strict_json, tail

NO_TASK = "(no task)"
NO_STATUS = "(no status)"
_NAME_LIMIT = 1000


class Outcome(NamedTuple):
    """One rollout as a report counts it. `status` may be any word a file holds; `odd` is a reward that is no number.

    `digest` tells the task's content from any other, `mode` is where it was graded; None when the line does not say.
    `rewarded` says that it names a reward, if one without a number. `cost` is what it cost, failed tries before it
    included, `judges` the part of that which went to models that graded it. `env_failed` says that its env's own code
    raised. `metrics` and `rewards` are those that have a number, by name, rewards without their weights.
    """

    run: str
    env: str
    agent: str
    harness: str | None
    model: str | None
    task: str
    digest: str | None
    mode: str | None
    status: str
    reward: float | None
    odd: bool
    rewarded: bool
    cost: float | None = None
    judges: float = 0.0
    env_failed: bool = False
    metrics: tuple[tuple[str, float], ...] = ()
    rewards: tuple[tuple[str, float], ...] = ()

    @property
    def scored(self) -> bool:
        """Whether its reward is known."""
        return self.status == Status.SCORED


def outcome(record: dict[str, Any]) -> Outcome:
    """A line's outcome. Missing and damaged fields become what is honestly known of them."""
    reward = record.get("reward")
    value = number(reward)
    verifier = record.get("verifier")
    return Outcome(
        run=_name(record.get("run")) or "",
        env=_name(record.get("env")) or SINGLE_AGENT,
        agent=_name(record.get("agent")) or "agent",
        harness=_name(record.get("harness")),
        model=_name(record.get("model")),
        task=_name(record.get("task")) or NO_TASK,
        digest=_name(record.get("task_digest")),
        mode=_name(verifier.get("mode")) if isinstance(verifier, dict) else None,
        status=_status(record, value),
        reward=value,
        odd=value is None and reward is not None,
        rewarded=bool(record.get("rewards")) or reward is not None,
        cost=total_cost(record),
        judges=judges_cost(record),
        env_failed="env_error" in _table(record, "info"),
        metrics=_numbers(_table(record, "metrics")),
        rewards=_numbers(
            {name: each.get("score") for name, each in _table(record, "rewards").items() if isinstance(each, dict)}
        ),
    )


def _table(record: dict[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _numbers(table: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    known = ((_name(name) or "", number(value)) for name, value in table.items())
    return tuple((name, value) for name, value in known if value is not None)


@dataclass(frozen=True, slots=True)
class Totals:
    """What all lines together took; lines that later ones replaced count too, their tokens were spent."""

    lines: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None  # of the `priced` lines that say what they cost
    judges_usd: float  # the part of it that went to models that graded
    priced: int
    fork_ms: float | None  # these three are medians
    agent_ms: float | None
    grade_ms: float | None


@dataclass(slots=True)
class Meter:
    """Adds lines up to `Totals`."""

    lines: int = 0
    tokens: dict[str, float] = field(default_factory=lambda: {"input": 0, "output": 0})
    costs: array[float] = field(default_factory=lambda: array("d"))
    judges: float = 0.0
    times: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in ("fork_ms", "agent_ms", "grade_ms")}
    )

    def add(self, record: dict[str, Any]) -> None:
        """Count one line; fields it lacks add nothing."""
        self.lines += 1
        usage = record.get("usage")
        if isinstance(usage, dict):
            for name in self.tokens:
                self.tokens[name] += number(usage.get(name)) or 0
        cost = total_cost(record)
        if cost is not None:
            self.costs.append(cost)
            self.judges += judges_cost(record)
        for name, values in self.times.items():
            taken = number(record.get(name))
            if taken is not None:
                values.append(taken)

    def totals(self) -> Totals:
        """The sums and medians so far."""
        return Totals(
            lines=self.lines,
            input_tokens=round(self.tokens["input"]),
            output_tokens=round(self.tokens["output"]),
            cost_usd=math.fsum(self.costs) if self.costs else None,
            judges_usd=self.judges,
            priced=len(self.costs),
            **{name: statistics.median(values) if values else None for name, values in self.times.items()},
        )


def _status(record: dict[str, Any], reward: float | None) -> str:
    status = record.get("status")
    if isinstance(status, str) and status:
        return sys.intern(tail(status, _NAME_LIMIT))
    # Lines of the first data sets have no status: only what was graded was written.
    return Status.SCORED.value if "status" not in record and reward is not None else NO_STATUS


def judges_cost(record: dict[str, Any]) -> float:
    """What of a line's cost went to models that graded it."""
    calls = record.get("calls")
    asked = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return math.fsum(number(call.get("cost_usd")) or 0 for call in asked if call.get("purpose") == "judge")


def _name(value: Any) -> str | None:
    if value is None:
        return None
    return sys.intern(tail(value if isinstance(value, str) else strict_json(value), _NAME_LIMIT))
