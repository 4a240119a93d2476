"""What the phases of any rollout have in common: failures go on its record, time is taken, its sandbox is let go."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from forkyard.env.boxes import verified_task, verifier_sandbox, working_directory
from forkyard.env.judges import JudgeRoutes
from forkyard.env.seat import Seat
from forkyard.errors import ForkyardError
from forkyard.grade import Grading, closed, settle_failure, unknown
from forkyard.sandbox import EndedBy, Sandbox, TellsLimits
from forkyard.task import Task, VerifierMode
from forkyard.trace import Timing, Trace


@contextmanager
def on_record(trace: Trace, touched: Callable[[], bool]) -> Iterator[None]:
    """Whatever fails inside is on the trace; `touched` says whether an agent has been in the sandbox by then."""
    try:
        yield
    except ForkyardError as err:
        settle_failure(trace, err, touched())
    except Exception as err:  # noqa: BLE001 - a fault of ours in one rollout must not end the others
        trace.record_error(err)
        trace.settle(unknown(touched()), f"internal error: {type(err).__name__}: {err}")


@contextmanager
def timed(timing: Timing, field: str) -> Iterator[None]:
    """Add the time it takes to a field."""
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(timing, field, (getattr(timing, field) or 0.0) + (time.perf_counter() - started) * 1000)


async def grading_of(
    seat: Seat,
    task: Task,
    trace: Trace,
    mode: VerifierMode,
    end: Callable[[], Awaitable[None]],
    *,
    lent: bool = False,
    judges: JudgeRoutes | None = None,
) -> Grading:
    """How a rollout of `task` at a seat is graded in a mode; `end` lets its sandbox go."""
    seen = verified_task(seat, task) if mode == "separate" else task
    return Grading(
        task=seen,
        mode=mode,
        fresh=lambda: verifier_sandbox(seat, seen),
        end=end,
        lent=lent,
        workdir=await working_directory(seat, task),
        retries=seat.verification.retries,
        keep_in=None if seat.keep_logs_in is None else seat.keep_logs_in / trace.id,
        ask=judges,
        serve=None if judges is None else judges.serve,
    )


def note_visits(trace: Trace, sandbox: Sandbox) -> None:
    """Keep on the record whom a sandbox that is over has called."""
    if visits := sandbox.visits:
        trace.info["network"] = [asdict(visit) for visit in visits]


@contextmanager
def limits_noted(trace: Trace, sandbox: Sandbox | None) -> Iterator[None]:
    """Keep on the record which limits of its sandbox were hit meanwhile, also by commands the agent went on after."""
    hits: Callable[[], Mapping[EndedBy, int]] = sandbox.limits_hit if isinstance(sandbox, TellsLimits) else dict
    before = hits()
    try:
        yield
    finally:
        note_limits(trace, [limit for limit, times in hits().items() if times > before.get(limit, 0)])


def note_limits(trace: Trace, hit: Iterable[str]) -> None:
    """Keep on the record that these limits, too, were hit."""
    if known := {*trace.info.get("limits_hit", ()), *hit}:
        trace.info["limits_hit"] = sorted(known)


async def let_go(trace: Trace, sandbox: Sandbox) -> None:
    """Close a sandbox; what goes wrong is noted and changes no score."""
    if trouble := await closed(sandbox):
        trace.info["close"] = trouble
