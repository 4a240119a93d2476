"""The Episode: what one play of an env on a task leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forkyard.errors import RolloutError
from forkyard.trace import Status, Trace


@dataclass(slots=True)
class Episode:
    """One play of an env on a task: the traces of every rollout in the order they ended, and the env's own errors."""

    id: str
    env: str
    task: str
    traces: list[Trace] = field(default_factory=list)
    errors: list[RolloutError] = field(default_factory=list)
    is_timeout: bool = False

    @property
    def ok(self) -> bool:
        """Whether the env's own code and every rollout went through."""
        return not self.errors and all(trace.ok for trace in self.traces)

    @property
    def failed(self) -> bool:
        """Whether the env's own code failed, or the infrastructure under a rollout."""
        lost = (Status.INFRASTRUCTURE_ERROR, Status.CANCELLED)
        return bool(self.errors) or any(trace.status in lost for trace in self.traces)

    @property
    def last_error(self) -> RolloutError | None:
        """The env's last error, if there was one."""
        return self.errors[-1] if self.errors else None

    @property
    def by_agent(self) -> Mapping[str, list[Trace]]:
        """The traces of each agent that played."""
        found: dict[str, list[Trace]] = {}
        for trace in self.traces:
            found.setdefault(trace.agent, []).append(trace)
        return found

    @property
    def num_turns(self) -> int:
        """Model replies of all rollouts together."""
        return sum(trace.steps for trace in self.traces)


def acted_in(trace: Trace) -> bool:
    """Whether the agent's phase of a rollout has begun: from there on a failure is no free retry."""
    return trace.timing.agent_ms is not None


def withdraw(trace: Trace, status: Status, reason: str) -> None:
    """Say that a graded rollout has no reward after all; its errors and metrics stay."""
    trace.status, trace.reason = status, reason
    trace.rewards = dict.fromkeys(trace.rewards)
