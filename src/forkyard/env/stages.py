"""One rollout of a task in stages: the agent acts and is graded stage by stage, in one sandbox, on one trace.

    stage    its setup, its agent, the seal, its grading, as in any rollout; what it brought is its own trace's
    gate     the next one begins when the task says so, and nothing is broken
    end      the task makes of all stages one reward

The agent of a stage never meets the tests of the one before. In mode `forked` these are in the fork alone. In mode
`shared` the next stage goes on in a fork that was made before they came, where the provider forks what runs: without
the processes that were left. Elsewhere they are taken away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forkyard.env.loan import Loan
from forkyard.env.phases import let_go, note_limits
from forkyard.env.rollout import Rollout
from forkyard.env.seat import Seat, grading_mode
from forkyard.sandbox import Feature, Sandbox
from forkyard.task import Task
from forkyard.task.staging import Staging
from forkyard.trace import Status, Trace

if TYPE_CHECKING:
    from forkyard.gateway import Budget

_JUDGED = "judge_cost_usd"
_TOLD = ("agent", "grade")  # phases of a stage that are phases of the whole


class StagedRollout(Rollout):
    """The whole. It has the sandbox, and no agent of its own."""

    def __init__(self, staging: Staging, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._staging = staging
        self._played: list[Trace] = []

    async def _set_up_harness(self) -> None:
        """Each stage does it."""

    async def _connect(self) -> None:
        """Each stage does it."""

    def _tell(self, stage: Trace, phase: str) -> None:
        if phase in _TOLD:
            self._on_phase(self.trace, phase)

    async def act(self) -> None:
        """Play stage after stage, until a gate is shut or something broke."""
        with self._on_record():
            self.trace.verifier["mode"] = grading_mode(self.seat, self.task)
            tasks = self._staging.tasks
            networks = {network for _, task in tasks for network in task.networks.asked}
            for number, (name, task) in enumerate(tasks):
                stage = _StageRollout(self, name, task, first=number == 0, last=number == len(tasks) - 1)
                if len(networks) > 1:
                    await self._running.set_network(task.networks.at_first)
                self._played.append(stage.trace)
                try:
                    await stage.play()
                finally:
                    self._acted = self._touched = self._acted or stage.acted
                    _take_over(self.trace, stage.trace)
                    await self._move_to(stage.onward)
                if _is_broken(stage.trace) or not self._staging.goes_on(self._played):
                    break

    async def finish(self) -> None:
        """Settle what the stages came to."""
        with self._on_record():
            if self._played and self.trace.status is None and not self.task.scoring_deferred:
                self._staging.conclude(self.trace, self._played)

    async def _move_to(self, onward: Sandbox | None) -> None:
        if onward is None:
            return
        before, self._sandbox = self._sandbox, onward
        if before is not None:
            await let_go(self.trace, before)


class _StageRollout(Rollout):
    """One stage, in a sandbox that the whole lends it. `onward` is where the next one is to go on, if not there."""

    def __init__(self, whole: StagedRollout, name: str, task: Task, *, first: bool, last: bool) -> None:
        seat = _seat_of(whole.seat, whole.trace)
        loan = Loan(whole._running, None, None)
        super().__init__(seat, task, _trace_of(whole.trace, name), whole._tell, loan, False, whole._given_tools)
        self._touched = not first
        alone = whole._loan is None and task.origin.compose is None
        self._forks = alone and not last and Feature.FORK_RUNNING in seat.provider.features
        self.onward: Sandbox | None = None
        self._whole = whole

    def _judges_money(self) -> tuple[float | None, float]:
        """Of the whole: what its agent has spent is nothing to its judges, but what they did in other stages is."""
        budget, spent = self._whole.seat.budget, self._whole.trace.verifier.get(_JUDGED, 0.0)
        return None if budget is None else budget.usd, float(spent)

    @property
    def acted(self) -> bool:
        """Whether its agent has begun."""
        return self._acted

    async def _fork(self) -> None:
        """The whole has a sandbox."""

    async def _grade(self) -> None:
        if self._forks and grading_mode(self.seat, self.task) == "shared":
            self.onward = await self._running.fork()
        await super()._grade()


def _trace_of(whole: Trace, name: str) -> Trace:
    """What a stage narrates into: limits hold over all stages, so it counts on from where the whole is."""
    return Trace(
        task=whole.task,
        task_digest=whole.task_digest,
        slot=whole.slot,
        agent=whole.agent,
        harness=whole.harness,
        model=whole.model,
        sandbox_provider=whole.sandbox_provider,
        id=name,
        graph=whole.graph,
        usage=whole.usage,
        steps=whole.steps,
        cost_usd=whole.cost_usd,
    )


def _take_over(whole: Trace, stage: Trace) -> None:
    whole.messages.extend(stage.messages)
    whole.calls.extend(stage.calls)
    whole.steps, whole.cost_usd = stage.steps, stage.cost_usd
    whole.errors.extend(stage.errors)
    note_limits(whole, stage.info.get("limits_hit", ()))
    whole.is_timeout = whole.is_timeout or stage.is_timeout
    if stage.stop_condition is not None:
        whole.stop(stage.stop_condition, override=True)
    if _JUDGED in stage.verifier:
        whole.verifier[_JUDGED] = whole.verifier.get(_JUDGED, 0.0) + stage.verifier[_JUDGED]
    for name in ("setup_ms", "agent_ms", "grade_ms", "model_ms"):
        if (took := getattr(stage.timing, name)) is not None:
            setattr(whole.timing, name, (getattr(whole.timing, name) or 0.0) + took)


def _is_broken(stage: Trace) -> bool:
    """Whether no further stage makes sense: it was not scored because of what is no verdict."""
    if stage.status is not None and not stage.status.graded:  # None: somebody else grades
        return True
    return stage.status is not Status.SCORED and bool(stage.errors)


def _seat_of(seat: Seat, whole: Trace) -> Seat:
    """The seat during one stage: its logs have a place of their own, and of the budget there is what is left."""
    logs = None if seat.keep_logs_in is None else seat.keep_logs_in / whole.id / "steps"
    return replace(seat, keep_logs_in=logs, budget=None if seat.budget is None else _left_of(seat.budget, whole))


def _left_of(budget: Budget, whole: Trace) -> Budget:
    asked = [call for call in whole.calls if call.purpose == "agent"]
    spent = sum(call.cost_usd or 0.0 for call in asked)
    return replace(
        budget,
        usd=None if budget.usd is None else max(0.0, budget.usd - spent),
        tokens=None if budget.tokens is None else max(0, budget.tokens - whole.usage.total),
        calls=None if budget.calls is None else max(0, budget.calls - len(asked)),
    )
