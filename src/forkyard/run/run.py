"""A run from its plan to its last line, and on from where an earlier process left it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from forkyard.env import IsolatedVerifierEnv
from forkyard.env.seat import grading_mode
from forkyard.interrupt import Interrupt
from forkyard.run.derived import can_follow, check_may
from forkyard.run.directory import RunDirectory, place_problems
from forkyard.run.eligible import foreseen
from forkyard.run.places import fetched, mirrored, take_over
from forkyard.run.plan import Plan, PlannedTask
from forkyard.run.playing import Outcome, describe, play, play_slots
from forkyard.run.prepare import Prepared, prepared, resolved
from forkyard.run.progress import Progress
from forkyard.run.regrade import regrading
from forkyard.run.schedule import Sleep
from forkyard.run.unasked import askable
from forkyard.sandbox import Provider
from forkyard.task import Task
from forkyard.trace import Status
from forkyard.trace.store import RETRIED, Record, Recorded, TraceStore
from forkyard.values import counted

_REPLAYED = {*RETRIED, Status.BUDGET, Status.SCORING_ERROR}


async def start(
    plan: Plan,
    progress: Progress,
    *,
    provider: Provider | None = None,
    sleep: Sleep = asyncio.sleep,
    clean: bool = False,
) -> Outcome:
    """Play a new run. Raises ConfigError with every reason not to start, before anything starts.

    SIGINT and SIGTERM end it in order (see `Interrupt`). `provider` takes the place of the one the plan names. With
    `clean` a run that has the directory goes, once there is no reason not to start.
    """
    wrong = place_problems(plan, clean=clean)
    return await play(lambda: prepared(resolved(plan), provider, problems=wrong), progress, sleep, clean=clean)


async def resume(
    path: Path,
    progress: Progress,
    *,
    provider: Provider | None = None,
    sleep: Sleep = asyncio.sleep,
    budget_usd: float | None = None,
    prices: Path | None = None,
) -> Outcome:
    """Play what a run has no line of yet, and again what ended as an infrastructure failure or with an env's error.

    `budget_usd` takes the place of the run's budget; what was spent before counts, and what a smaller budget of the run
    cut short is played again. `prices` takes the place of the run's; what was refused a judge for want of a price that
    is known now is played again. Raises ConfigError when `path` is no run, another process is at it, or its tasks are
    not what they were.
    """
    outcome = Outcome()
    with Interrupt(progress.abandon) as interrupt:
        path = await fetched(path)
        directory, plan = RunDirectory.open(path)
        with directory:
            if budget_usd is not None:
                plan = plan.model_copy(update={"budget_usd": budget_usd})
            if prices is not None:
                plan = plan.model_copy(update={"prices": prices.absolute()})
            check_may("resume", path, plan)
            with TraceStore(directory.traces) as store:
                repairs = store.repairs
                await take_over(directory, plan, store)
            owed = _owed(plan, _unpaid(directory, budget_usd), askable(plan))
            recorded = _of_the_plan(plan, directory.recorded(owed))
            describe(outcome, directory, plan, recorded)
            for repair in repairs:
                progress.note(repair)
            if len(recorded.done) < plan.planned:
                async with _prepared_again(plan, provider, directory) as ready:
                    progress.note(_what_is_left(plan, recorded))
                    if plan.forkyard != version("forkyard"):
                        progress.note(f"the run was begun by forkyard {plan.forkyard}, this is {version('forkyard')}")
                    directory.withdraw(recorded.again)
                    directory.sweep()
                    async with mirrored(directory, plan):
                        await play_slots(ready, directory, recorded, progress, outcome, sleep)
            else:  # a kill may have come between the two places
                async with mirrored(directory, plan):
                    pass
    outcome.signal = interrupt.signal
    return outcome


def _prepared_again(
    plan: Plan, provider: Provider | None, directory: RunDirectory
) -> AbstractAsyncContextManager[Prepared]:
    spent = directory.spent() if plan.budget_usd else 0.0
    return regrading(plan, provider, spent=spent) if plan.action == "regrade" else prepared(plan, provider, spent)


async def check(plan: Plan, *, clean: bool = False) -> Plan:
    """The plan with its tasks in it, when it could be played now. Raises ConfigError with every reason why not.

    A plan that names its tasks is one to go on with. For another, `clean` says that a run in its directory may go.
    """
    wrong = [] if plan.tasks else place_problems(plan, clean=clean)
    async with prepared(resolved(plan), problems=wrong) as ready:
        tasks = {task.name: _with_note_on_regrading(ready, task) for task in ready.tasks}
        return ready.plan.model_copy(update={"tasks": {name: tasks[name] for name in ready.plan.tasks}})


def _with_note_on_regrading(ready: Prepared, task: Task) -> PlannedTask:
    """A task as it is planned, with a note when its rollouts could not be graded again."""
    planned = ready.plan.tasks[task.name]
    if not can_follow(ready.plan):
        return planned
    (seat,) = ready.seats.values()
    apart = ready.plan.env == IsolatedVerifierEnv.id
    why = foreseen(task, "separate" if apart else grading_mode(seat, task))
    said = () if why is None else (f"what comes out cannot be graded again (`forkyard regrade`): {why}",)
    return planned.model_copy(update={"notes": (*planned.notes, *said)})


def _owed(plan: Plan, *kinds: Callable[[Record], bool]) -> Callable[[Record], bool | None]:
    """Which lines whoever goes on with the run has played again: those of `kinds`, and else what their env said, or
    that its own code failed; None leaves it to the status.
    """

    def owed(record: Record) -> bool | None:
        info = record.get("info")
        if any(is_owed(record) for is_owed in kinds):
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
