"""When an agent is stopped: how many replies and tokens it may take."""

from __future__ import annotations

from dataclasses import dataclass

from forkyard.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """When to stop an agent; None is no limit. Its seconds are the task's agent timeout."""

    max_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None


def limit_reached(trace: Trace, limits: AgentLimits) -> str | None:
    """The name of the limit that allows no further model call, as a stop condition."""
    usage = trace.usage
    reached = {
        "max_turns": (trace.steps, limits.max_turns),
        "max_input_tokens": (usage.input, limits.max_input_tokens),
        "max_output_tokens": (usage.output, limits.max_output_tokens),
        "max_total_tokens": (usage.input + usage.output, limits.max_total_tokens),
    }
    return next((name for name, (used, limit) in reached.items() if limit is not None and used >= limit), None)
