"""What is said of a rollout, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SINGLE_AGENT = "single-agent"
"""The env that is meant where none is named: one agent, one rollout."""
_FULL = 1 - 1e-9  # a sum of weighted rewards may miss 1 by rounding


class Status(StrEnum):
    """What is known of a rollout's reward."""

    SCORED = "SCORED"
    INDETERMINATE = "INDETERMINATE"  # graded, but no reward came out: nothing is known of the answer
    SCORING_ERROR = "SCORING_ERROR"  # the verifier delivered something that is not a reward
    INFRASTRUCTURE_ERROR = "INFRASTRUCTURE_ERROR"  # ours or the provider's failure, not the agent's
    BUDGET = "BUDGET"  # a spending limit ended it before it could be graded
    CANCELLED = "CANCELLED"  # the operator ended it

    @property
    def graded(self) -> bool:
        """Whether a verifier has had its say, whatever came of it."""
        return self in (Status.SCORED, Status.SCORING_ERROR, Status.INDETERMINATE)


@dataclass(frozen=True, slots=True)
class Reward:
    """One reward: its score and its weight in the trace's total."""

    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        """Its part of the total."""
        return self.score * self.weight


def unit_of(env: str) -> str:
    """What is planned and counted of an env: rollouts, or episodes that may be of several."""
    return "rollout" if env == SINGLE_AGENT else "episode"


def is_full(reward: float | None) -> bool:
    """Whether a rollout's reward is all there is to earn."""
    return reward is not None and reward >= _FULL


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, in seconds since 1970; without a length when it never was."""

    start: float
    end: float

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that are not in one piece."""

    duration: float


@dataclass(frozen=True, slots=True)
class AgentSpan(Span):
    """The agent's time, and how much of it the model and the harness took."""

    model: Spent
    harness: Spent


_PHASES = ("fork_ms", "setup_ms", "agent_ms", "grade_ms")


@dataclass(slots=True)
class Timing:
    """Milliseconds spent in each phase; None until the phase has run."""

    fork_ms: float | None = None
    setup_ms: float | None = None
    agent_ms: float | None = None
    grade_ms: float | None = None
    model_ms: float = 0.0  # inside agent_ms: waiting for the model, retries included
    start: float = field(default=0.0, compare=False)  # when the trace was minted

    # The same as spans, one after the other: what lies between two phases is not measured.

    @property
    def boot(self) -> Span:
        """Getting the sandbox."""
        return self._span("fork_ms")

    @property
    def setup(self) -> Span:
        """The task's and the harness's setup."""
        return self._span("setup_ms")

    @property
    def agent(self) -> AgentSpan:
        """The agent at work."""
        span, model = self._span("agent_ms"), self.model_ms / 1000
        return AgentSpan(span.start, span.end, Spent(model), Spent(max(0.0, span.duration - model)))

    @property
    def scoring(self) -> Span:
        """Grading, from `Task.finalize` on."""
        return self._span("grade_ms")

    def _span(self, name: str) -> Span:
        start = self.start + sum(getattr(self, phase) or 0.0 for phase in _PHASES[: _PHASES.index(name)]) / 1000
        return Span(start, start + (getattr(self, name) or 0.0) / 1000)


@dataclass(frozen=True, slots=True)
class Slot:
    """Which planned rollout this is: the `sample`-th repeat of a task in a run; `attempt` counts retries."""

    run: str = ""
    sample: int = 0
    attempt: int = 0
    episode: str = ""
    env: str = SINGLE_AGENT
