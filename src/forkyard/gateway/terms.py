"""What a route is opened for, and one request on it before it becomes a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forkyard.gateway.budget import NO_BUDGET, Budget, OverBudgetError
from forkyard.gateway.dialects import Answered, Asked, Dialect
from forkyard.gateway.dialects.base import Body
from forkyard.gateway.prices import Price
from forkyard.gateway.upstreams import Upstream
from forkyard.model import Sampling
from forkyard.model.protocol import PLAIN
from forkyard.task import Task
from forkyard.trace import AgentLimits, ModelCall, Trace

Purpose = Literal["agent", "judge"]
OnCall = Callable[[ModelCall, Asked, Answered], object]
"""Told of every call that has ended."""

NO_LIMITS = AgentLimits()
ENDED = "rollout_ended"
"""The code, and for a harness in this process the condition, of a call after the route was closed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a route is opened for. `model` None leaves the choice to the client."""

    trace: Trace
    model: str | None = None
    sampling: Sampling = PLAIN
    limits: AgentLimits = NO_LIMITS
    budget: Budget = NO_BUDGET
    purpose: Purpose = "agent"
    task: Task[Any, Any, Any] | None = None
    on_call: OnCall | None = None


@dataclass(slots=True)
class Draft:
    """A request that was read: who is asked, and the members of its body that the gateway changes on the way.

    `taken` are the JSON paths of what was taken out of it. With `anew` none of the client's own bytes are sent on:
    bytes that could be read in two ways must not hold what was not seen here.
    """

    dialect: Dialect
    body: Body
    asked: Asked
    model: str
    upstream: Upstream
    changes: Body
    price: Price | None
    anew: bool = False
    taken: Sequence[str] = ()


class RefusedError(Exception):
    """No call is made. `condition` names the stop when one of the agent's bounds is why."""

    def __init__(self, status: int, message: str, code: str, condition: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.condition = status, code, condition


class StopError(Exception):
    """The agent is stopped: `condition` says by what. `budget` is what a budget refused, when it was one."""

    def __init__(self, condition: str, budget: OverBudgetError | None = None) -> None:
        super().__init__(str(budget) if budget else condition)
        self.condition, self.budget = condition, budget


class UpstreamError(Exception):
    """The provider could not be asked or broke off: 504 for too late, 503 for unreachable, 502 for unreadable.

    400 is for a reply that holds a key, which asking again will not mend.
    """

    def __init__(self, status: int, message: str, cause: Exception) -> None:
        super().__init__(message)
        self.status, self.cause = status, cause
