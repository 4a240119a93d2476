"""When an agent is stopped: how many replies and tokens it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from forkyard.trace.calls import Usage
from forkyard.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """When to stop an agent; None is no limit. Its seconds are the task's agent timeout."""

    max_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None


@dataclass(slots=True)
class Used:
    """What was used beside what is on a trace."""

    steps: int = 0
    usage: Usage = field(default_factory=Usage)


def limit_reached(trace: Trace, limits: AgentLimits, beside: Used | None = None) -> str | None:
    """The name of the limit that allows no further model call, as a stop condition."""
    more = beside or Used()
    tokens, others = trace.usage, more.usage
    reached = {
        "max_turns": (trace.steps + more.steps, limits.max_turns),
        "max_input_tokens": (tokens.input + others.input, limits.max_input_tokens),
        "max_output_tokens": (tokens.output + others.output, limits.max_output_tokens),
        "max_total_tokens": (tokens.total + others.total, limits.max_total_tokens),
    }
    return next((name for name, (used, limit) in reached.items() if limit is not None and used >= limit), None)
