"""Are the tasks themselves sound? Each is solved as its author means it to be, and left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from forkyard.harness import Harness, ModelContext, NopHarness, OracleHarness
from forkyard.run.controls import Controls, controls
from forkyard.run.plan import Plan
from forkyard.sandbox import Provider, Sandbox
from forkyard.task import Task, TaskTimeout, invoke
from forkyard.trace import Status, Trace, is_full

Check = Literal["setup", "gold", "noop"]
Reason = Literal["valid", "invalid", "unchecked", "error", "timeout"]
_WORST_FIRST: tuple[Reason, ...] = ("error", "timeout", "invalid", "unchecked", "valid")
_ANSWER = "validated"


@dataclass(frozen=True, slots=True)
class Checked:
    """How one check of one task ended; `valid` is None when there was nothing to check."""

    reason: Reason
    elapsed: float
    error: str | None = None
    error_type: str | None = None
    reward: float | None = None
    rewards: dict[str, float | None] | None = None

    @property
    def valid(self) -> bool | None:
        """Whether the task passed."""
        return None if self.reason == "unchecked" else self.reason == "valid"


@dataclass(frozen=True, slots=True)
class Row:
    """One task with its checks; `reason` is the worst of theirs."""

    index: int
    name: str
    key: str
    checks: dict[str, Checked]

    @property
    def reason(self) -> Reason:
        """The worst of the checks'."""
        found = {check.reason for check in self.checks.values()}
        if "unchecked" in found and found - {"unchecked"} == {"valid"}:
            return "valid"  # what could be checked holds
        return next(reason for reason in _WORST_FIRST if reason in found)

    def values(self, mode: str) -> dict[str, Any]:
        """The row as a file of results holds it."""
        worst = next(check for check in self.checks.values() if check.reason == self.reason)
        return {
            "index": self.index,
            "name": self.name,
            "mode": mode,
            "valid": None if self.reason == "unchecked" else self.reason == "valid",
            "reason": self.reason,
            "elapsed": round(sum(check.elapsed for check in self.checks.values()), 3),
            "error": worst.error,
            "error_type": worst.error_type,
            **{name: {"valid": check.valid, **asdict(check)} for name, check in self.checks.items()},
            "task_position": self.index,
            "task_key": self.key,
        }


class _Validating(Harness):
    """Asks the task's own `validate` in the place of an agent."""

    name = "validate"
    needs_model = False

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Keep the answer on the trace."""
        trace.info[_ANSWER] = await invoke(task.validate, task=task.data, trace=trace, runtime=runtime)


async def validate(
    plan: Plan,
    checks: Sequence[Check],
    *,
    setup_seconds: float | None = None,
    total_seconds: float | None = None,
    provider: Provider | None = None,
    on_row: Callable[[Row], object] = lambda _: None,
) -> list[Row]:
    """Check every task that a plan selects; `total_seconds` bounds one check. Raises ConfigError before it starts."""
    async with controls(plan, provider) as given:
        ready = replace(given, seat=replace(given.seat, timeout=TaskTimeout(setup=setup_seconds)))
        waiting = iter(enumerate(ready.tasks))
        rows: list[Row] = []

        async def work() -> None:
            for index, task in waiting:
                done: dict[str, Checked] = {}
                for check in checks:
                    done[check] = await _checked(check, task, ready, total_seconds)
                rows.append(Row(index, task.name, task.key, done))
                on_row(rows[-1])

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(len(ready.tasks), plan.concurrent or len(ready.tasks))):
                workers.create_task(work())
    return sorted(rows, key=lambda row: row.index)


async def _checked(check: Check, task: Task, ready: Controls, seconds: float | None) -> Checked:
    began = time.monotonic()
    by_solution = check == "gold" and task.solution is not None
    if check == "gold" and not by_solution and type(task).validate is Task.validate:
        return Checked("unchecked", 0.0)
    harness: Harness = OracleHarness() if by_solution else _Validating() if check == "gold" else NopHarness()
    played = task if check == "noop" or by_solution else task.defer_scoring()
    try:
        async with asyncio.timeout(seconds):
            trace = await ready.play(played, harness)
    except TimeoutError:
        return Checked("timeout", time.monotonic() - began, f"took longer than {seconds:g} s", "TimeoutError")
    return _judged(check, by_solution, trace, time.monotonic() - began)


def _judged(check: Check, by_solution: bool, trace: Trace, elapsed: float) -> Checked:
    rewards = {name: None if reward is None else reward.score for name, reward in trace.rewards.items()}
    if trace.errors:
        error = trace.errors[-1]
        return Checked("error", elapsed, str(error["message"]), str(error["type"]), trace.reward, rewards)
    if trace.is_timeout:
        return Checked("timeout", elapsed, trace.reason or trace.stop_condition, "TimeoutError", trace.reward, rewards)
    if check == "setup":
        return Checked("valid", elapsed)
    if check == "gold" and not by_solution:
        answer = trace.info.get(_ANSWER)
        said = None if answer else "validate() said that the task is not sound"
        return Checked("unchecked", elapsed) if answer is None else Checked(_of(bool(answer)), elapsed, said)
    if trace.status is not Status.SCORED:
        return Checked("error", elapsed, trace.reason, str(trace.status), trace.reward, rewards)
    full = is_full(trace.reward)
    good = full if by_solution else not full
    said = "the solution does not earn the full reward" if by_solution else "doing nothing earns the full reward"
    return Checked(_of(good), elapsed, None if good else said, None, trace.reward, rewards)


def _of(good: bool) -> Reason:
    return "valid" if good else "invalid"
