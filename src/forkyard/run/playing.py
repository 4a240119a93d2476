"""Playing what is prepared: a run's slots, from its directory to its last line."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkyard.errors import EnvError, ForkyardError, boundary
from forkyard.interrupt import Interrupt
from forkyard.run.directory import RunDirectory
from forkyard.run.places import mirrored
from forkyard.run.plan import Plan
from forkyard.run.prepare import Prepared
from forkyard.run.progress import Headline, Progress
from forkyard.run.schedule import Schedule, Sleep, slots
from forkyard.trace.store import Recorded, TaskSample, TraceStore, read_traces, slot_of
from forkyard.values import counted

_NOTHING = Recorded(frozenset(), {}, {})


@dataclass(slots=True)
class Outcome:
    """How a run, or the part of it that was played now, ended, counted in `unit`s.

    `directory` is None when it was interrupted before anything started. `recorded` counts the lines of the whole run,
    `errored` those of now with an infrastructure failure or an error of the env's own code. `stopped` is the error
    that ended it early, `spent` whether that is the end of its money, `signal` the number of the signal that did.
    """

    directory: Path | None = None
    unit: str = "rollout"
    planned: int = 0
    recorded: int = 0
    played: int = 0
    errored: int = 0
    stopped: str | None = None
    spent: bool = False
    signal: int | None = None
    resume_command: str = ""


async def play(
    preparing: Callable[[], AbstractAsyncContextManager[Prepared]],
    progress: Progress,
    sleep: Sleep,
    *,
    clean: bool = False,
) -> Outcome:
    """Play a new run of what is prepared for it; raises as that does. With `clean` it may take another one's place."""
    outcome = Outcome()
    with Interrupt(progress.abandon) as interrupt:
        async with preparing() as ready:
            with RunDirectory.create(ready.plan, clean=clean) as directory:
                async with mirrored(directory, ready.plan):
                    await play_slots(ready, directory, _NOTHING, progress, outcome, sleep)
    outcome.signal = interrupt.signal
    return outcome


async def play_slots(
    ready: Prepared,
    directory: RunDirectory,
    recorded: Recorded,
    progress: Progress,
    outcome: Outcome,
    sleep: Sleep,
) -> None:
    """Play the slots that are not on record, and check that all are at the end; `outcome` tells how it went."""
    plan = ready.plan
    describe(outcome, directory, plan, recorded)
    for note in (*await ready.tidied(), *ready.notes):
        progress.note(note)
    began = time.monotonic()
    with TraceStore(directory.traces) as store:
        schedule = Schedule(ready, directory, store, progress, recorded.attempts, sleep)
        seat = next(iter(ready.seats.values()))
        progress.begin(Headline(plan.run, seat.harness.name, seat.model, plan.planned, len(recorded.done)))
        try:
            async with AsyncExitStack() as stack:
                if ready.env is not None:
                    with boundary(EnvError, f"env {plan.env} could not start"):
                        await stack.enter_async_context(ready.env.serving())
                waiting = slots(ready.tasks, plan.samples, recorded.done)
                await schedule.play((task, sample) for task, sample in waiting if plan.holds(task.name, sample))
        finally:
            tally = schedule.tally
            outcome.played, outcome.errored = tally.played, tally.errored
            outcome.stopped, outcome.spent = tally.stopped, tally.spent
            outcome.recorded += tally.played
            progress.abandon()
    for note in await ready.keeper.close() if ready.keeper is not None else ():
        progress.note(note)
    progress.end(tally.lines, time.monotonic() - began, directory.traces)
    if outcome.stopped is None:
        _check_lines(plan, directory.traces)


def describe(outcome: Outcome, directory: RunDirectory, plan: Plan, recorded: Recorded) -> None:
    """Say in an outcome what is known of a run before it is played, or played on."""
    outcome.directory = directory.path
    outcome.resume_command = directory.resume_command
    outcome.unit = plan.unit
    outcome.planned = plan.planned
    outcome.recorded = len(recorded.done)


def _check_lines(plan: Plan, traces: Path) -> None:
    """Every planned episode was played once and left its lines. Raises ForkyardError: it is a fault of ours if not."""
    plays: dict[TaskSample, set[Any]] = {}
    for record in read_traces(traces):
        if slot := slot_of(record):
            plays.setdefault(slot, set()).add((record.get("episode"), record.get("attempt")))
    wrong = [
        f"{task} #{sample} has {len(plays.get((task, sample), ()))}"
        for sample in range(plan.samples)
        for task in plan.tasks
        if plan.holds(task, sample) and len(plays.get((task, sample), ())) != 1
    ]
    if wrong:
        raise ForkyardError(
            f"internal error: {counted(plan.planned, plan.unit)} planned, but not one play for each in {traces}: "
            f"{', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''}. Please report it; the run can be resumed."
        )
