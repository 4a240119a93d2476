"""A run from its plan to its last line, and on from where an earlier process left it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from forkyard.errors import ConfigError, EnvError, ForkyardError, boundary
from forkyard.interrupt import Interrupt
from forkyard.run.directory import RunDirectory
from forkyard.run.plan import Plan
from forkyard.run.prepare import Prepared, prepared, resolved
from forkyard.run.progress import Headline, Progress
from forkyard.run.schedule import Schedule, Sleep, slots
from forkyard.sandbox import Provider
from forkyard.trace import Status
from forkyard.trace.store import RETRIED, Record, Recorded, TaskSample, TraceStore, read_traces, slot_of
from forkyard.values import counted

_REPLAYED = {*RETRIED, Status.BUDGET}
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


async def start(
    plan: Plan, progress: Progress, *, provider: Provider | None = None, sleep: Sleep = asyncio.sleep
) -> Outcome:
    """Play a new run. Raises ConfigError with every reason not to start, before anything starts.

    SIGINT and SIGTERM end it in order (see `Interrupt`). `provider` takes the place of the one the plan names.
    """
    return await play(lambda: prepared(resolved(plan), provider), progress, sleep)


async def play(
    preparing: Callable[[], AbstractAsyncContextManager[Prepared]], progress: Progress, sleep: Sleep
) -> Outcome:
    """Play a new run of what is prepared for it; raises as that does."""
    outcome = Outcome()
    with Interrupt(progress.abandon) as interrupt:
        async with preparing() as ready:
            with RunDirectory.create(ready.plan) as directory:
                async with _on_disk_too(directory, ready.plan):
                    await _play(ready, directory, _NOTHING, progress, outcome, sleep)
    outcome.signal = interrupt.signal
    return outcome


async def resume(
    path: Path,
    progress: Progress,
    *,
    provider: Provider | None = None,
    sleep: Sleep = asyncio.sleep,
    budget_usd: float | None = None,
) -> Outcome:
    """Play what a run has no line of yet, and again what ended as an infrastructure failure or with an env's error.

    `budget_usd` takes the place of the run's budget; what was spent before counts, and what a smaller budget of the run
    cut short is played again. Raises ConfigError when `path` is no run, another process is at it, or its tasks are not
    what they were.
    """
    outcome = Outcome()
    with Interrupt(progress.abandon) as interrupt:
        if str(path).startswith("disk:"):
            from forkyard.run.ondisk import fetched  # most runs do without

            path = await fetched(path)
        directory, plan = RunDirectory.open(path)
        with directory:
            if budget_usd is not None:
                plan = plan.model_copy(update={"budget_usd": budget_usd})
            if plan.source is not None and plan.action != "regrade":
                raise ConfigError(f"{path} holds scores of {plan.source}, not a run of its own: replay that again")
            with TraceStore(directory.traces) as store:
                repairs = store.repairs
                await _take_over(directory, plan, store)
            recorded = _of_the_plan(plan, directory.recorded(_owed(plan, _unpaid(directory, budget_usd))))
            _describe(outcome, directory, plan, recorded)
            for repair in repairs:
                progress.note(repair)
            if len(recorded.done) < plan.planned:
                async with _prepared_again(plan, provider, directory) as ready:
                    progress.note(_what_is_left(plan, recorded))
                    if plan.forkyard != version("forkyard"):
                        progress.note(f"the run was begun by forkyard {plan.forkyard}, this is {version('forkyard')}")
                    directory.withdraw(recorded.again)
                    directory.sweep()
                    async with _on_disk_too(directory, plan):
                        await _play(ready, directory, recorded, progress, outcome, sleep)
            elif plan.disk is not None:  # a kill may have come between the two places
                async with _on_disk_too(directory, plan):
                    pass
    outcome.signal = interrupt.signal
    return outcome


@asynccontextmanager
async def _on_disk_too(directory: RunDirectory, plan: Plan) -> AsyncIterator[None]:
    """Have what is written meanwhile written to the plan's disk as well. ConfigError when that cannot be."""
    if plan.disk is None:
        yield
        return
    from forkyard.run.ondisk import mirrored  # most runs do without

    async with mirrored(plan.disk, plan.place.name, directory.path) as directory.mirror:
        yield


async def _take_over(directory: RunDirectory, plan: Plan, store: TraceStore) -> None:
    if plan.disk is not None:
        from forkyard.run.ondisk import take_over

        await take_over(plan.disk, plan.place.name, store, directory.known())


def _prepared_again(
    plan: Plan, provider: Provider | None, directory: RunDirectory
) -> AbstractAsyncContextManager[Prepared]:
    if plan.action == "regrade":
        from forkyard.run.regrade import regrading  # most runs do without

        return regrading(plan, provider)
    return prepared(plan, provider, directory.spent() if plan.budget_usd else 0.0)


async def check(plan: Plan) -> Plan:
    """The plan with its tasks in it, when it could be played now. Raises ConfigError with every reason why not."""
    async with prepared(resolved(plan)) as ready:
        return ready.plan


async def _play(
    ready: Prepared,
    directory: RunDirectory,
    recorded: Recorded,
    progress: Progress,
    outcome: Outcome,
    sleep: Sleep,
) -> None:
    plan = ready.plan
    _describe(outcome, directory, plan, recorded)
    for note in ready.notes:
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


def _owed(plan: Plan, unpaid: Callable[[Record], bool]) -> Callable[[Record], bool | None]:
    """Which lines whoever goes on with the run has played again: unpaid ones, and else what their env said, or that
    its own code failed; None leaves it to the status.
    """

    def owed(record: Record) -> bool | None:
        info = record.get("info")
        if unpaid(record):
            return True
        if plan.action is not None or not isinstance(info, dict):
            return None
        complete = info.get("complete")
        return not complete if isinstance(complete, bool) else ("env_error" in info or None)

    return owed


def _unpaid(directory: RunDirectory, budget_usd: float | None) -> Callable[[Record], bool]:
    """Which lines can be played again with more money: a smaller budget of the run, not one of theirs, ended them."""
    left = budget_usd is not None and budget_usd > directory.spent()

    def unpaid(record: Record) -> bool:
        if not left or record.get("status") != Status.BUDGET:
            return False
        info = record.get("info")
        over = info.get("over_budget") if isinstance(info, dict) else None
        usd = over.get("usd") if isinstance(over, dict) and over.get("whose") == "run" else None
        return isinstance(usd, int | float) and budget_usd is not None and usd < budget_usd

    return unpaid


def _of_the_plan(plan: Plan, recorded: Recorded) -> Recorded:
    """What is on record of the planned slots alone; lines that somebody else put there are none of the run's."""
    again = {slot: status for slot, status in recorded.again.items() if plan.holds(*slot)}
    return replace(recorded, done=frozenset(slot for slot in recorded.done if plan.holds(*slot)), again=again)


def _describe(outcome: Outcome, directory: RunDirectory, plan: Plan, recorded: Recorded) -> None:
    outcome.directory = directory.path
    outcome.resume_command = directory.resume_command
    outcome.unit = plan.unit
    outcome.planned = plan.planned
    outcome.recorded = len(recorded.done)


def _what_is_left(plan: Plan, recorded: Recorded) -> str:
    failed = counted_statuses(
        status if status in _REPLAYED else f"{status} that the env did not complete"
        for status in recorded.again.values()
    )
    new = plan.planned - len(recorded.done) - len(recorded.again)
    again = f"{failed} to be played again" if failed else "none to be played again"
    return f"{plan.run}: {counted(len(recorded.done), plan.unit)} done, {again}, {new} not yet played"


def counted_statuses(statuses: Iterable[str]) -> str:
    """ "2 INFRASTRUCTURE_ERROR, 1 CANCELLED"."""
    return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common())


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
