"""What is said of a rollout, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


def is_full(reward: float | None) -> bool:
    """Whether a rollout's reward is all there is to earn."""
    return reward is not None and reward >= _FULL


@dataclass(slots=True)
class Timing:
    """Milliseconds spent in each phase; None until the phase has run."""

    fork_ms: float | None = None
    setup_ms: float | None = None
    agent_ms: float | None = None
    grade_ms: float | None = None
    model_ms: float = 0.0  # inside agent_ms: waiting for the model, retries included


@dataclass(frozen=True, slots=True)
class Slot:
    """Which planned rollout this is: the `sample`-th repeat of a task in a run; `attempt` counts retries."""

    run: str = ""
    sample: int = 0
    attempt: int = 0
    episode: str = ""
    env: str = "single-agent"
