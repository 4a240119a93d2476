"""How a task's metrics, rewards and judges become a trace's: in this order, those of one kind at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from forkyard.errors import ForkyardError, InterceptionError, ModelError, SandboxError, TaskError, boundary
from forkyard.sandbox import Sandbox
from forkyard.task.data import TaskData
from forkyard.task.hooks import Signal, invoke
from forkyard.task.unrecorded import note_reads
from forkyard.trace import Status, Trace

UNRECORDED = "unrecorded_state"
"""The key of `Trace.verifier` under which signals are named that read a state which is on no line."""
NOT_THE_TASK = (SandboxError, ModelError, InterceptionError)


def runnable(signals: Sequence[Signal], runtime: Sandbox | None) -> tuple[list[Signal], list[Signal]]:
    """The signals that can be taken, and those that cannot without a sandbox."""
    skipped = [signal for signal in signals if runtime is None and signal.needs_runtime]
    return [signal for signal in signals if signal not in skipped], skipped


def seed(trace: Trace, signals: Sequence[Signal]) -> None:
    """Put the names on the record before the numbers, so that what is missing is missing."""
    for signal in signals:
        _of(trace, signal)[signal.name] = None


async def measure(
    owner: Any, data: TaskData, signals: Sequence[Signal], trace: Trace, runtime: Sandbox | None
) -> list[Exception]:
    """Take the signals at once and record them; what failed, when all have ended."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(_deliver(owner, data, signal, trace, runtime)) for signal in signals]
    return [failure for task in running if not task.cancelled() and (failure := task.result())]


async def _deliver(
    owner: Any, data: TaskData, signal: Signal, trace: Trace, runtime: Sandbox | None
) -> Exception | None:
    what = f"{signal.kind} {signal.name} of task {data.name or type(owner).__name__}"
    reads: list[str] = []
    note_reads(reads)
    try:
        with boundary(TaskError, what):
            value = await invoke(signal.bound(owner), task=data, trace=trace, runtime=runtime)
            if not reads:
                _record(trace, signal, value)
    except TimeoutError as err:  # the hook's own deadline; the caller's arrives as a cancellation
        error = TaskError(f"{what}: TimeoutError: {err or 'a deadline passed'}")
        error.__cause__ = err
        return error
    except ForkyardError as err:
        if not reads:
            return err
    if reads:
        return UnreadError(signal)
    return None


class UnreadError(TaskError):
    """A signal could not be taken, for it reads a state that is on no line."""

    def __init__(self, signal: Signal) -> None:
        super().__init__(f"{signal.kind} {signal.name} reads trace.state, which no line holds")
        self.signal = signal


def set_apart(trace: Trace, failures: Sequence[Exception]) -> tuple[list[Exception], list[Signal]]:
    """What failed, and the signals that were left out because they read what is on no line; those are named there."""
    unread = [failure.signal for failure in failures if isinstance(failure, UnreadError)]
    for signal in unread:
        _of(trace, signal).pop(signal.name, None)
    if unread:
        trace.verifier[UNRECORDED] = sorted({*trace.verifier.get(UNRECORDED, ()), *(signal.name for signal in unread)})
    return [failure for failure in failures if not isinstance(failure, UnreadError)], unread


def _of(trace: Trace, signal: Signal) -> dict[str, Any]:
    return trace.metrics if signal.kind == "metric" else trace.rewards


def _record(trace: Trace, signal: Signal, value: Any) -> None:
    """Record a number under the signal's name, or each number of a mapping under its own key instead."""
    record = _of(trace, signal)
    values = value if isinstance(value, Mapping) else {signal.name: value}
    numbers = {str(key): float(number) for key, number in values.items()}
    if signal.kind == "reward" and not numbers:
        raise ValueError(f"{signal.name} returned an empty mapping, so there is no reward")
    for key, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{key!r} is {number}, not a finite number")
        if key != signal.name and key in record:
            raise ValueError(f"{signal.name} returned {key!r}, but another {signal.kind} is called that")
    if signal.name not in numbers:
        del record[signal.name]
    for key, number in numbers.items():
        if signal.kind == "metric":
            trace.record_metric(key, number)
        else:
            trace.record_reward(key, number, signal.weight)


def verdict(trace: Trace, skipped: Sequence[Signal], unread: Sequence[Signal] = ()) -> tuple[Status, str | None]:
    """What is known of the reward when every signal was taken that can be."""
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        return Status.SCORING_ERROR, f"no reward was delivered by {', '.join(missing)}"
    if skipped:
        names = ", ".join(signal.name for signal in skipped)
        return Status.INDETERMINATE, f"graded without a sandbox, which {names} needs"
    if unread:
        names = ", ".join(signal.name for signal in unread)
        return Status.INDETERMINATE, f"graded without the rollout's state, which {names} needs and no line holds"
    if not trace.rewards:
        return Status.INDETERMINATE, "the task has no rewards"
    return Status.SCORED, None


def settled(trace: Trace, failures: Sequence[Exception]) -> Exception:
    """The failure to raise, the others as its notes. A status is settled only when no machine or model failed."""
    first, *others = sorted(failures, key=lambda failure: not isinstance(failure, NOT_THE_TASK))
    for other in others:
        first.add_note(str(other))
    if not isinstance(first, NOT_THE_TASK):
        more = f" (and {len(others)} more)" if others else ""
        trace.settle(Status.SCORING_ERROR, f"{first}{more}")
    return first
