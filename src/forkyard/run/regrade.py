"""Grading the rollouts of a run again, by its tasks as they are now. No agent is played; the run is not touched."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forkyard.env import Agents, Seat, agent_at, sandbox_spec
from forkyard.env.again import Left, grade_again
from forkyard.env.boxes import seated_task
from forkyard.errors import ConfigError
from forkyard.run.derived import changes, derived, leave_grading_out
from forkyard.run.eligible import Eligibility
from forkyard.run.gateways import gateway_of, judges_of, verifiers_of
from forkyard.run.plan import Plan, PlannedTask
from forkyard.run.playing import Outcome, play
from forkyard.run.prepare import Prepared, as_planned, env_of, verifiers_told
from forkyard.run.progress import Progress
from forkyard.run.schedule import Sleep
from forkyard.run.seats import Places, agent_configs, harness_of, seat_of
from forkyard.run.source import SourceRun
from forkyard.run.tasksets import load_tasks
from forkyard.sandbox import NO_NETWORK, Provider, Sandbox
from forkyard.sandbox.keeping import KeepsDisks
from forkyard.task import Task
from forkyard.task.directory import DirectoryTask
from forkyard.trace import Slot, Status, Trace
from forkyard.trace.costs import COST_BEFORE, total_cost
from forkyard.trace.store import Record, TaskSample
from forkyard.values import counted, first_names, new_id, printable

if TYPE_CHECKING:
    from forkyard.gateway import Gateway

_OF_THE_VERIFIER = ("close", "logs", "disk", "judge_calls")  # in a trace's info


@dataclass(frozen=True, slots=True)
class Regrade:
    """What is to be graded again, and as which run.

    `task` and `status` choose among the source's rollouts; `tests` takes the place of the task's tests/, and `verifier`
    that of the mode they were graded in. `model_settings` is None when no judge is asked; else plan fields (endpoint,
    key, prices, budget) that replace the source run's.
    """

    source: Path
    out: Path
    run: str | None = None
    task: str | None = None
    status: Status | None = None
    tests: Path | None = None
    verifier: Literal["forked", "separate"] | None = None
    concurrent: int = 4
    model_settings: Mapping[str, Any] | None = None


async def regrade(
    wanted: Regrade, progress: Progress, *, provider: Provider | None = None, sleep: Sleep = asyncio.sleep
) -> Outcome:
    """Grade what can be graded again, and tell what cannot and why.

    Raises ConfigError, before anything is written, when nothing can. `provider` takes the place of the source's.
    """
    plan, chosen = _plan(wanted), _chooser(wanted)
    return await play(lambda: regrading(plan, provider, chosen), progress, sleep)


async def check_regrade(wanted: Regrade, *, provider: Provider | None = None) -> tuple[Plan, tuple[str, ...]]:
    """The plan of what `regrade` would do now, and its notes, which say what could not be graded again and why.

    Raises ConfigError as `regrade` does, and grades nothing.
    """
    async with regrading(_plan(wanted), provider, _chooser(wanted)) as ready:
        return ready.plan, ready.notes


def _plan(wanted: Regrade) -> Plan:
    """The plan without its tasks and rollouts. Raises ConfigError."""
    _, plan = derived(
        "regrade",
        wanted.source,
        wanted.run,
        wanted.out,
        tests=wanted.tests and wanted.tests.absolute(),
        concurrent=wanted.concurrent,
        ask_judges=wanted.model_settings is not None,
        **{"budget_usd": None, **{name: _absolute(value) for name, value in (wanted.model_settings or {}).items()}},
    )
    if wanted.tests is not None and not (wanted.tests / "test.sh").is_file():
        raise ConfigError(f"--tests {wanted.tests}: it holds no test.sh, the script that grades")
    return plan.model_copy(update={"agent": plan.agent.model_copy(update={"verifier": wanted.verifier})})


def _absolute(value: Any) -> Any:
    return value.absolute() if isinstance(value, Path) else value


def _chooser(wanted: Regrade) -> Callable[[SourceRun], list[TaskSample]]:
    def chosen(source: SourceRun) -> list[TaskSample]:
        plan = source.plan
        if wanted.task is not None and wanted.task not in plan.tasks:
            raise ConfigError(f"--task {wanted.task}: run {plan.run} has {first_names(list(plan.tasks))}")
        names = [wanted.task] if wanted.task is not None else list(plan.tasks)
        slots = [(name, sample) for sample in range(plan.samples) for name in names if plan.holds(name, sample)]
        if wanted.status is None:
            return slots
        found = [slot for slot in slots if (source.record(slot) or {}).get("status") == wanted.status]
        if not found:
            raise ConfigError(f"--status {wanted.status}: none of the rollouts of run {plan.run} ended like that")
        return found

    return chosen


@asynccontextmanager
async def regrading(
    plan: Plan,
    provider: Provider | None = None,
    chosen: Callable[[SourceRun], Sequence[TaskSample]] | None = None,
    spent: float = 0.0,
) -> AsyncIterator[Prepared]:
    """What grades a plan's rollouts again; a plan that names none yet gets those of `chosen` that can be.

    `spent` is what one to go on with has cost so far. Raises ConfigError when it is not to be had, or nothing is left
    to be graded.
    """
    async with AsyncExitStack() as stack:
        source = stack.enter_context(SourceRun(plan.source or Path()))
        places = Places(plan.agent, plan.base, provider, stack)
        slots = list(chosen(source)) if chosen else []
        problems: list[str] = []
        names = list(dict.fromkeys(name for name, _ in slots)) if chosen else list(plan.tasks)
        found = verifiers_told(plan, tuple(_loaded(plan, names, problems, stack)), problems)
        gateway = _gateway(plan, found, spent)
        if gateway is not None:
            stack.push_async_callback(gateway.close)
        seat = await _seat(plan, places, stack, gateway)
        notes: list[str] = []
        disks = await seat.provider.kept_disks() if isinstance(seat.provider, KeepsDisks) else ()
        tasks = {task.name: task for task in found}
        kept = {disk.name for disk in disks}
        why = "; ".join(problems[:3])
        eligible = Eligibility(source, tasks, seat, kept, _mode_wanted(plan), why, plan.ask_judges)
        if chosen:
            plan = _with_rollouts(plan, slots, eligible, notes)
        elif problems:
            raise ConfigError(*problems)
        play = partial(grade_again, plan.env, _Again(eligible).left)
        yield Prepared(plan, as_planned(plan, found), {"agent": seat}, play, tuple(notes), gateway=gateway)


def _mode_wanted(plan: Plan) -> Literal["forked", "separate"] | None:
    return plan.agent.verifier if plan.agent.verifier != "shared" else None


def _gateway(plan: Plan, tasks: Sequence[Task], spent: float) -> Gateway | None:
    """The way to the judges' models; None when none is to be asked. Raises ConfigError."""
    if not plan.ask_judges:
        return None
    (config,) = agent_configs(plan, env_of(plan)).values()
    return gateway_of(plan, [*judges_of(tasks, config.model, config.budget), *verifiers_of(tasks)], spent)


async def _seat(plan: Plan, places: Places, stack: AsyncExitStack, gateway: Gateway | None) -> Seat:
    """The seat that the source's agent had, as its env had it graded; nobody but judges uses its way to a model."""
    env = env_of(plan)
    env.furnish(places.place)
    (config,) = agent_configs(plan, env).values()
    agent = agent_at(seat_of(config, harness_of(config), config.model, places, gateway))
    await stack.enter_async_context(env.serving())
    await env.setup(Agents({"agent": agent}))
    return agent.seat


def _loaded(plan: Plan, names: Sequence[str], problems: list[str], stack: AsyncExitStack) -> list[Task]:
    """The tasks as they are now, with other tests if the plan says so."""
    found = [task for task in load_tasks(plan, problems) if task.name in names]
    if plan.tests is None or not found:
        return found
    if len(found) > 1:
        raise ConfigError(f"--tests is for one task, and these are {len(found)}: choose one with --task")
    (task,) = found
    if not isinstance(task, DirectoryTask):
        raise ConfigError(f"--tests is for task directories, and {task.name} is none")
    root = task.files.root.absolute()
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkyard-tests-"))) / root.name
    shutil.copytree(root, copy, symlinks=True, ignore=_without_tests(root))
    shutil.copytree(plan.tests, copy / "tests", symlinks=True)
    wrong: list[str] = []
    others: dict[str, Any] = {"paths": (copy,), "taskset": None, "select": {}}
    changed = [one for one in load_tasks(plan.model_copy(update=others), wrong) if one.name in names]
    if wrong:
        raise ConfigError(*(text.replace(f"{copy}/tests", str(plan.tests)) for text in wrong))
    return changed


def _without_tests(root: Path) -> Callable[[str, list[str]], list[str]]:
    return lambda place, names: [name for name in names if Path(place) == root and name in ("tests", ".git")]


def _with_rollouts(plan: Plan, slots: Sequence[TaskSample], eligible: Eligibility, notes: list[str]) -> Plan:
    """The plan of what can be graded again; what cannot is said in `notes`. Raises ConfigError when nothing can."""
    refused = {slot: why for slot in slots if (why := eligible.refusal(slot))}
    told = [f"not graded again: {text}" for text in _grouped(refused)]
    if len(refused) == len(slots):
        raise ConfigError(*(told or [f"run {eligible.source.plan.run} has no rollouts"]))
    notes += told
    before = eligible.source.plan
    regraded: dict[str, tuple[int, ...]] = {}
    for name, sample in slots:
        if (name, sample) not in refused:
            regraded[name] = (*regraded.get(name, ()), sample)
    planned = {name: PlannedTask(digest=eligible.tasks[name].digest) for name in regraded}
    plan = plan.model_copy(update={"regraded": regraded, "tasks": planned})
    notes += changes(plan, before)
    return plan


def _grouped(refused: Mapping[TaskSample, str]) -> list[str]:
    """Each reason once, with the rollouts it is of."""
    found: dict[str, list[str]] = {}
    for (name, sample), why in refused.items():
        found.setdefault(why, []).append(f"{name} #{sample}")
    told = ((f"{counted(len(whose), 'rollout')} ({first_names(whose)})", why) for why, whose in found.items())
    return [printable(f"{who}: {why}") for who, why in told]


class _Again:
    """Finds what each rollout left."""

    def __init__(self, eligible: Eligibility) -> None:
        self._eligible = eligible

    def left(self, task: Task, slot: Slot) -> Left:
        """What the rollout of a slot of the plan left."""
        source, seat = self._eligible.source, self._eligible.seat
        record = source.record((task.name, slot.sample))
        assert record is not None  # the source is held, and had it
        mode = self._eligible.mode_of(record)
        trace = agent_part(record, slot, task)
        if record["verifier"]["mode"] != "forked":  # there is no disk
            return Left(trace, mode, source.collected(record))
        return Left(trace, mode, lambda: _on_disk(seat, task, str(record["id"])))


async def _on_disk(seat: Seat, task: Task, name: str) -> Sandbox:
    """A sandbox such as the agent's was, on the disk that it left."""
    provider = seat.provider
    assert isinstance(provider, KeepsDisks)
    task = seated_task(seat, task)
    spec = sandbox_spec(task, "", provider.features)
    return await provider.from_kept(name, replace(spec, network=task.network or NO_NETWORK))


def agent_part(record: Record, slot: Slot, task: Task) -> Trace:
    """A trace of its own with what the agent did, and nothing of how that was graded."""
    trace = Trace.from_record(record)
    trace.id, trace.slot, trace.task_digest = new_id(), slot, task.digest
    own = {key: value for key, value in trace.info.items() if key not in _OF_THE_VERIFIER}
    trace.info = {**own, "regraded_from": record["id"]}
    agents = [call for call in trace.calls if call.purpose != "judge"]
    if len(agents) < len(trace.calls):
        costs = [call.cost_usd for call in agents if call.cost_usd is not None]
        trace.calls, trace.cost_usd = agents, math.fsum(costs) if costs else None
    if (before := total_cost({"cost_usd": trace.cost_usd, "info": own})) is not None:
        trace.info[COST_BEFORE] = before
    trace.rewards, trace.verifier, trace.status, trace.reason = {}, {}, None, None
    trace.metrics = dict(own.get("agent_metrics") or {})
    leave_grading_out(trace)
    trace.timing.grade_ms = None
    return trace
