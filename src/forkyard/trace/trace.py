"""The Trace: everything one rollout leaves, and the line it becomes.

A trace is minted before anything starts and narrated into while the rollout runs, so that whatever happened before a
crash is on the record. `Status` says what is known of the reward, `stop` says why the agent stopped; the two are
never merged.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from forkyard.errors import RolloutError
from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.messages import Messages
from forkyard.values import finite_or_none, new_id, tail

SCHEMA = 1
TRACEBACK_LIMIT = 8000


class Status(StrEnum):
    """What is known of a rollout's reward."""

    SCORED = "SCORED"
    INDETERMINATE = "INDETERMINATE"  # graded, but no reward came out: nothing is known of the answer
    SCORING_ERROR = "SCORING_ERROR"  # the verifier delivered something that is not a reward
    INFRASTRUCTURE_ERROR = "INFRASTRUCTURE_ERROR"  # ours or the provider's failure, not the agent's
    BUDGET = "BUDGET"  # a spending limit ended it before it could be graded
    CANCELLED = "CANCELLED"  # the operator ended it


@dataclass(frozen=True, slots=True)
class Reward:
    """One reward: its score and its weight in the trace's total."""

    score: float
    weight: float = 1.0


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


@dataclass(slots=True)
class Trace:
    """One rollout's record. Hooks and rewards of a task receive it as `trace`."""

    task: str = ""
    task_digest: str | None = None
    slot: Slot = field(default_factory=Slot)
    agent: str = "agent"
    harness: str = ""
    model: str | None = None
    sandbox_provider: str = ""
    id: str = field(default_factory=new_id)
    started: float = field(default_factory=time.time)
    messages: Messages = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    timing: Timing = field(default_factory=Timing)
    rewards: dict[str, Reward | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    verifier: dict[str, Any] = field(default_factory=dict)
    status: Status | None = None
    reason: str | None = None
    stop_condition: str | None = None
    is_timeout: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    state: Any = None  # typed state of a task, live only
    model_failing: str | None = None  # why the model call under way is being tried again, live only

    @property
    def reward(self) -> float | None:
        """The sum of score times weight, or None when there is no reward or one is still missing."""
        given = [reward for reward in self.rewards.values() if reward is not None]
        if not given or len(given) < len(self.rewards):
            return None
        return math.fsum(reward.score * reward.weight for reward in given)

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong (a low reward is not wrong)."""
        return not self.errors

    @property
    def last_reply(self) -> str:
        """The text of the model's last message, or ""."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return str(message.get("content") or "")
        return ""

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        """Record one reward; raises ValueError unless it is a finite number."""
        self.rewards[name] = Reward(_finite(name, value), weight)

    def record_metric(self, name: str, value: float) -> None:
        """Record one metric; raises ValueError unless it is a finite number."""
        self.metrics[name] = _finite(name, value)

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Record several metrics."""
        for name, value in values.items():
            self.record_metric(name, value)

    def record_call(self, call: ModelCall) -> None:
        """Put one ended model call on the record; a reply is a step, and its tokens and money are the rollout's."""
        self.calls.append(call)
        self.usage.add(call.usage)
        if call.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + call.cost_usd
        if call.error is None:
            self.steps += 1

    def note_model_failure(self, why: str) -> None:
        """The model call under way failed and is tried again."""
        self.model_failing = why

    def stop(self, condition: str, override: bool = False) -> None:
        """Say why the agent stopped; the first reason stands unless overridden."""
        if self.stop_condition is None or override:
            self.stop_condition = condition

    def record_timeout(self, stage: str) -> None:
        """A stage (setup, agent, finalize, scoring) ran into its deadline: a stop, not an error."""
        self.is_timeout = True
        self.stop(f"{stage}_timeout", override=True)

    def record_error(self, error: BaseException) -> None:
        """Put an error on the record; it becomes the stop condition when nothing stopped the agent before."""
        kind = error.kind if isinstance(error, RolloutError) else type(error).__name__
        self.errors.append(
            {
                "type": kind,
                "message": tail(str(error), TRACEBACK_LIMIT),
                "status_code": getattr(error, "status_code", None),
                "lasting": getattr(error, "lasting", False),
                "fatal": getattr(error, "fatal", False),
                "traceback": tail("".join(traceback.format_exception(error)), TRACEBACK_LIMIT),
            }
        )
        self.stop(f"{kind}_error" if isinstance(error, RolloutError) else "error")

    def settle(self, status: Status, reason: str | None = None) -> None:
        """Decide what is known of the reward. Said once; a later call is ignored."""
        if self.status is None:
            self.status = status
            self.reason = reason

    def to_record(self) -> dict[str, Any]:
        """The line of the dataset: the first seed's fields in its order, then ours. Strict JSON values only."""
        timing = asdict(self.timing)
        model_ms = timing.pop("model_ms")
        error = self.errors[-1] if self.errors else None
        record = {
            "run": self.slot.run,
            "task": self.task,
            "sample": self.slot.sample,
            "model": self.model,
            "reward": self.reward if self.status is Status.SCORED else None,
            "passed": self._count("passed"),
            "total": self._count("total"),
            "steps": self.steps,
            "usage": {"input": self.usage.input, "output": self.usage.output},
            "fork_ms": _rounded(timing.pop("fork_ms")),
            "agent_ms": _rounded(timing.pop("agent_ms")),
            "messages": self.messages,
            "schema": SCHEMA,
            "id": self.id,
            "attempt": self.slot.attempt,
            "episode": self.slot.episode,
            "env": self.slot.env,
            "agent": self.agent,
            "harness": self.harness,
            "provider": self.sandbox_provider,
            "status": self.status,
            "reason": self.reason,
            "stop": self.stop_condition,
            "timeout": self.is_timeout,
            "rewards": {name: asdict(r) if r else None for name, r in self.rewards.items()},
            "metrics": self.metrics,
            "verifier": self.verifier,
            "setup_ms": _rounded(timing["setup_ms"]),
            "grade_ms": _rounded(timing["grade_ms"]),
            "model_ms": _rounded(model_ms),
            "usage_detail": asdict(self.usage),
            "cost_usd": self.cost_usd,
            "task_digest": self.task_digest,
            "started": round(self.started, 3),
            "error": error and {key: error[key] for key in ("type", "message", "status_code")},
            "errors": self.errors,
            "info": self.info,
        }
        return finite_or_none(record)  # type: ignore[no-any-return]

    def _count(self, name: str) -> int | None:
        value = self.metrics.get(name, self.metrics.get(f"tests_{name}"))
        return int(value) if value is not None and value == int(value) else None


def _finite(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name!r} is {number}, not a finite number")
    return number


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
