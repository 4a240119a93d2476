"""Scoring the traces of a run again, without sandboxes: what its tasks' rewards and judges say of them now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkyard.env.config import AgentConfig
from forkyard.env.judges import JudgeRoutes, judging
from forkyard.errors import ConfigError, ForkyardError, TaskError
from forkyard.interrupt import Interrupt
from forkyard.run.derived import changes, derived, leave_grading_out
from forkyard.run.directory import RunDirectory
from forkyard.run.gateways import gateway_of, judges_of
from forkyard.run.plan import Plan, PlannedTask
from forkyard.run.playing import Outcome
from forkyard.run.prepare import env_of, resolved
from forkyard.run.progress import Headline, Progress
from forkyard.run.seats import agent_configs
from forkyard.run.tasksets import load_tasks
from forkyard.secrets import Secrets, redact
from forkyard.task import UNRECORDED, Task, judging_by, unrecorded
from forkyard.trace import Reward, Status, Trace
from forkyard.trace.store import TRACES_FILE, Record, TraceStore, read_traces, was_graded
from forkyard.values import counted, first_names, new_id

if TYPE_CHECKING:
    from forkyard.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be scored again, and as which run. `taskset_config` takes the place of the run's, None leaves it."""

    source: Path
    out: Path
    run: str | None = None
    taskset_config: Mapping[str, Any] | None = None


async def replay(wanted: Replay, progress: Progress) -> Outcome:
    """Write the run's lines into a new run, scored again by what needs no sandbox; the run itself is not touched.

    What needs one keeps its value. Lines of rollouts that were never graded go over as they are, and so do those whose
    grading failed at what needs a sandbox.
    Raises ConfigError when there is nothing to score, before anything is written.
    """
    outcome = Outcome()
    with Interrupt(progress.abandon) as interrupt:
        before, plan, tasks = _planned(wanted)
        async with AsyncExitStack() as stack:
            (agent,) = agent_configs(plan, env_of(plan)).values()
            gateway = gateway_of(plan, list(judges_of(list(tasks.values()), agent.model, agent.budget)), 0.0)
            if gateway is not None:
                stack.push_async_callback(gateway.close)
            with RunDirectory.create(plan) as directory, TraceStore(directory.traces) as store:
                outcome.directory, outcome.planned = directory.path, plan.planned
                for note in changes(plan, before):
                    progress.note(note)
                began = time.monotonic()
                progress.begin(_headline(plan, wanted.source / TRACES_FILE))
                secrets = gateway.secrets if gateway else Secrets()
                unrecorded_by: dict[str, None] = {}
                for episode in _episodes(wanted.source / TRACES_FILE):
                    records = [await _scored(record, plan, tasks, agent, gateway) for record in episode]
                    store.append(*(redact(record, secrets) for record in records))
                    outcome.played += 1
                    outcome.recorded += 1
                    for record in records:
                        progress.finished(record)
                        unrecorded_by.update(dict.fromkeys((record.get("verifier") or {}).get(UNRECORDED, ())))
                progress.abandon()
                if unrecorded_by:
                    progress.note(
                        f"kept the value of before, for trace.state, which they read, is on no line: "
                        f"{first_names(list(unrecorded_by))}"
                    )
                progress.end(outcome.played, time.monotonic() - began, directory.traces)
    outcome.signal = interrupt.signal
    return outcome


def _headline(plan: Plan, traces: Path) -> Headline:
    """Who played, as the first line says: an agent may have had a harness and a model other than the plan's own."""
    played = next(iter(read_traces(traces)), {}) if traces.exists() else {}
    harness, model = played.get("harness", plan.harness.id), played.get("model", plan.agent.model)
    return Headline(plan.run, str(harness), model and str(model), plan.planned, 0)


def _planned(wanted: Replay) -> tuple[Plan, Plan, dict[str, Task]]:
    """The plans of the source and of the new run, and its tasks by name. Raises ConfigError."""
    config = {} if wanted.taskset_config is None else {"taskset_config": wanted.taskset_config}
    before, plan = derived("replay", wanted.source, wanted.run, wanted.out, **config)
    problems: list[str] = []
    found = {task.name: task for task in load_tasks(plan, problems)}
    if missing := [name for name in before.tasks if name not in found]:
        problems.append(f"no longer there: {counted(len(missing), 'task')}: {first_names(missing)}")
    if problems:
        raise ConfigError(*problems)
    tasks = {name: found[name] for name in before.tasks}
    if not any(_without_sandbox(task) for task in tasks.values()):
        raise ConfigError(f"nothing in {wanted.source} can be scored again: all rewards of its tasks need a sandbox")
    planned = {name: PlannedTask(digest=task.digest, notes=before.tasks[name].notes) for name, task in tasks.items()}
    return before, resolved(plan).model_copy(update={"tasks": planned}), tasks


def _without_sandbox(task: Task) -> bool:
    signals = (*task.signals("reward"), *task.signals("metric"))
    return bool(task.config.judges) or any(not signal.needs_runtime for signal in signals)


def _episodes(traces: Path) -> Iterator[list[Record]]:
    """The lines of a run, those of one episode together."""
    episode: list[Record] = []
    for record in read_traces(traces):
        if episode and (not record.get("episode") or record.get("episode") != episode[-1].get("episode")):
            yield episode
            episode = []
        episode.append(record)
    if episode:
        yield episode


async def _scored(
    record: Record, plan: Plan, tasks: Mapping[str, Task], agent: AgentConfig, gateway: Gateway | None
) -> Record:
    """One line of the new run."""
    task = tasks.get(str(record.get("task")))
    origin = _origin(record)
    if task is None or not _can_be_scored(record, task):
        info = {**(record.get("info") or {}), "replay": {**origin, "scored": False}}
        return {**record, "run": plan.run, "info": info}
    trace = Trace.from_record(record)
    trace.id, trace.slot, trace.task_digest = new_id(), replace(trace.slot, run=plan.run), task.digest
    trace.info["replay"] = {**origin, "scored": True}
    trace.state = unrecorded(task.state_type())
    async with judging(gateway, trace, trace.model, agent.budget.usd) as judges:
        await _score_again(trace, task, judges)
    return trace.to_record()


def _origin(record: Record) -> dict[str, Any]:
    """Of which line this one will be a new score: of a line that is one itself, the first."""
    before = (record.get("info") or {}).get("replay")
    first = before if isinstance(before, dict) else record
    return {"run": first.get("run"), "id": first.get("id")}


def _can_be_scored(record: Record, task: Task) -> bool:
    """Whether a line was graded, and anything of that can be done without a sandbox; what failed in it, too."""
    if not was_graded(record) or not _without_sandbox(task):
        return False
    if not record.get("errors"):
        return True
    mode = (record.get("verifier") or {}).get("mode")  # without one what failed was the agent's part, or its end
    rewards = record.get("rewards") or {}
    needing = [signal.name for signal in task.signals("reward") if signal.needs_runtime]
    return bool(mode) and not (needing and not rewards) and all(rewards.get(name, True) for name in needing)


async def _score_again(trace: Trace, task: Task, judges: JudgeRoutes | None) -> None:
    old_rewards, old_metrics = trace.rewards, trace.metrics
    for said in (UNRECORDED, "timed_out"):
        trace.verifier.pop(said, None)
    leave_grading_out(trace)
    trace.rewards, trace.metrics, trace.status, trace.reason = {}, {}, None, None
    try:
        with judging_by(judges):
            await task.score(trace, None)
    except ForkyardError as err:
        trace.record_error(err)
        trace.settle(Status.SCORING_ERROR if isinstance(err, TaskError) else Status.INFRASTRUCTURE_ERROR, str(err))
    skipped = [signal for signal in task.signals("reward") if signal.needs_runtime]
    if skipped:
        kept = {name: reward for name, reward in old_rewards.items() if name not in trace.rewards}
        trace.rewards = {**kept, **trace.rewards}
        if kept and trace.status is Status.INDETERMINATE and trace.reward is not None:
            trace.status, trace.reason = Status.SCORED, None
    keep_unrecorded(trace, old_rewards, old_metrics)
    trace.metrics = {**old_metrics, **trace.metrics}


def keep_unrecorded(trace: Trace, rewards: Mapping[str, Reward | None], metrics: Mapping[str, float | None]) -> None:
    """Let what reads the rollout's state, which no line holds, keep the value it had, and say so as the reason."""
    names = trace.verifier.get(UNRECORDED)
    if not names:
        return
    trace.metrics = {**{name: metrics[name] for name in names if name in metrics}, **trace.metrics}
    kept = {name: reward for name, reward in rewards.items() if name not in trace.rewards}
    trace.rewards = {**kept, **trace.rewards}
    if trace.status in (Status.SCORED, Status.INDETERMINATE) and trace.reward is not None:
        trace.status = Status.SCORED
        trace.reason = f"{', '.join(names)} kept the value of before: trace.state, which it reads, is on no line"
