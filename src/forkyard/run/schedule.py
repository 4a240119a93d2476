"""Slots in their order, a bounded number of them at work, and exactly one line for each that was played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forkyard.env import Episode, RetryConfig
from forkyard.env.episode import acted_in
from forkyard.env.retry import may_retry
from forkyard.errors import EnvError
from forkyard.run.directory import RunDirectory
from forkyard.run.prepare import Prepared
from forkyard.run.progress import Progress
from forkyard.run.waiting import Waiting
from forkyard.secrets import redact
from forkyard.task import Task
from forkyard.trace import Slot, Status, Trace
from forkyard.trace.costs import keep_attempts, total_cost
from forkyard.trace.record import bare_record_of
from forkyard.trace.store import TaskSample, TraceStore
from forkyard.values import backoff, strict_json

Sleep = Callable[[float], Awaitable[object]]


@dataclass(slots=True)
class Tally:
    """What a run has come to so far: episodes, and the lines they left.

    `errored` counts the episodes with an infrastructure failure or an error of the env's own code; `stopped` is the
    error after which none was begun, `spent` whether that is the end of the run's money.
    """

    played: int = 0
    lines: int = 0
    errored: int = 0
    stopped: str | None = None
    spent: bool = False


def slots(tasks: Sequence[Task], samples: int, done: Container[TaskSample]) -> Iterator[tuple[Task, int]]:
    """The slots to play: the first sample of every task, then the second; made as they are asked for."""
    return ((task, sample) for sample in range(samples) for task in tasks if (task.name, sample) not in done)


class Schedule:
    """Plays slots with the env and the seats of a prepared run. `attempts` says how often a slot was played before."""

    def __init__(
        self,
        ready: Prepared,
        directory: RunDirectory,
        store: TraceStore,
        progress: Progress,
        attempts: Mapping[TaskSample, int],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.tally = Tally()
        self._ready = ready
        self._seats = ready.keeping(directory.rollouts)
        self._retries = _retries(ready)
        self._secrets = ready.secrets
        self._store = store
        self._mirror = directory.mirror
        self._progress = progress
        self._waiting = Waiting(progress.note)
        self._attempts = attempts
        self._sleep = sleep

    async def play(self, waiting: Iterator[tuple[Task, int]]) -> None:
        """Play until none is waiting, or until what stops one rollout would stop every other: `tally.stopped`."""
        plan = self._ready.plan
        self._stop_without_money()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(plan.concurrent or plan.planned, plan.planned)):
                    workers.create_task(self._work(waiting))
        except ExceptionGroup as failures:
            error = failures.exceptions[0]
            if not isinstance(error, OSError):
                raise error from None
            self.tally.stopped = f"a line could not be written: {error}"

    async def _work(self, waiting: Iterator[tuple[Task, int]]) -> None:
        if self.tally.stopped is not None:
            return
        for task, sample in waiting:
            await self._play_slot(task, sample)
            self._stop_without_money()
            if self.tally.stopped is not None:
                return

    async def _play_slot(self, task: Task, sample: int) -> None:
        first = self._attempts.get((task.name, sample), 0)
        failed: list[Episode] = []
        while True:
            slot = Slot(self._ready.plan.run, sample, first + len(failed))
            episode = await self._ready.play(task, slot, self._seats, self._phase)
            failures = _failures(episode)
            self._stop_for_good(failures)
            if not failures or _may_be_the_agents(episode):
                break
            if not self._may_retry([_worst(_failures(each)) for each in (*failed, episode)]):
                break
            failed.append(episode)
            await self._sleep(backoff(len(failed)))
            if self.tally.stopped is not None:
                break
        keep_costs(episode, failed)
        await self._write(episode)

    def _phase(self, trace: Trace, phase: str) -> None:
        if phase == "done":
            self._waiting.forget(trace)
        else:
            trace.on_model_failure = self._waiting.failed
        self._progress.phase(trace, phase)

    def _may_retry(self, tries: Sequence[Trace]) -> bool:
        if not tries[-1].errors:  # a deadline: nothing says that it would pass again
            return len(tries) <= self._retries.max_retries
        return may_retry(self._retries, tries)

    def _stop_for_good(self, failures: Sequence[Trace]) -> None:
        fatal = [error for trace in failures for error in trace.errors if error["fatal"]]
        if fatal and self.tally.stopped is None:
            self.tally.stopped = str(fatal[0]["message"])

    def _stop_without_money(self) -> None:
        if self._ready.gateway is not None and self._ready.gateway.exhausted and self.tally.stopped is None:
            self.tally.stopped, self.tally.spent = self._ready.gateway.exhausted, True

    async def _write(self, episode: Episode) -> None:
        records = [self._record(trace) for trace in episode.traces]
        self._store.append(*records)  # at once: a kill leaves the whole episode on record, or nothing of it
        if self._mirror is not None:
            await self._mirror.append(records)
        self.tally.played += 1
        self.tally.lines += len(records)
        self.tally.errored += bool(_failures(episode) or episode.errors)
        self._tell_of_env(episode)
        for record in records:
            self._progress.finished(record)

    def _tell_of_env(self, episode: Episode) -> None:
        """An error of the env's own code stands on lines that may look as if all were well: it is told beside them."""
        error, slot = str(episode.last_error or ""), episode.traces[0].slot
        if error and not any(trace.reason == error for trace in episode.traces):
            said = redact(error, self._secrets)
            self._progress.note(f"{episode.task} #{slot.sample}: error of the env's own code: {said}")

    def _record(self, trace: Trace) -> dict[str, Any]:
        """What is to be written of a trace. What code of a task has put there and cannot be written costs no line."""
        try:
            record: dict[str, Any] = redact(trace.to_record(), self._secrets)
            strict_json([record["info"], record["verifier"], record["metrics"]])
        except Exception as err:  # noqa: BLE001 - foreign values may raise whatever they like
            record = redact(bare_record_of(trace, err), self._secrets)
        return record


def _retries(ready: Prepared) -> RetryConfig:
    """The run's own new attempts and those that the env's configuration allows."""
    given: RetryConfig = RetryConfig() if ready.env is None else ready.env.config.retries
    return given.model_copy(update={"max_retries": given.max_retries + ready.plan.retries})


def _failures(episode: Episode) -> list[Trace]:
    return [trace for trace in episode.traces if trace.status is Status.INFRASTRUCTURE_ERROR]


def _may_be_the_agents(episode: Episode) -> bool:
    """Whether the env's own code failed after an agent had acted: what it did may have made the env fail."""
    own = any(isinstance(error, EnvError) for error in episode.errors)
    return own and any(acted_in(trace) for trace in episode.traces)


def _worst(failures: Sequence[Trace]) -> Trace:
    """The failure that decides on another attempt: one that would come again, if there is one."""
    lasting = (trace for trace in failures if any(error["lasting"] or error["fatal"] for error in trace.errors))
    return next(lasting, failures[0])


def _cost_of(episode: Episode) -> float:
    return sum(total_cost({"cost_usd": trace.cost_usd, "info": trace.info}) or 0.0 for trace in episode.traces)


def keep_costs(episode: Episode, failed: Sequence[Episode]) -> None:
    """Put what the attempts that are not written came to on the record of the one that is."""
    if failed:
        told = [(_worst(_failures(each)).reason, each.traces) for each in failed]
        keep_attempts(episode.traces[0], "episode", told)
