"""An agent: a seat in an env, with everything it needs to play a rollout."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from forkyard.env.boxes import image_of, opened, seated_task
from forkyard.env.interaction import Interaction
from forkyard.env.loan import Loan
from forkyard.env.retry import keep_earlier, may_retry
from forkyard.env.rollout import Rollout
from forkyard.env.seat import OnPhase, Seat
from forkyard.env.stages import StagedRollout
from forkyard.grade import closed
from forkyard.harness import tool_callers
from forkyard.harness.offering import toolsets_of
from forkyard.sandbox import Sandbox
from forkyard.task import AnyToolset, Task, TaskData
from forkyard.tools import tool_mounts
from forkyard.trace import Slot, Trace
from forkyard.values import backoff

OnTrace = Callable[[Trace], object]
"""Given a rollout's trace before anything of it starts."""


@dataclass(slots=True)
class Table:
    """What the agents of one episode share. `task` is the one that every trace of it is filed under, if not its own."""

    task: Task | None
    slot: Slot
    on_phase: OnPhase
    traces: list[Trace]
    minted: list[Trace] = field(default_factory=list)
    room: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    loans: dict[str, Loan] = field(default_factory=dict)
    talks: list[Rollout] = field(default_factory=list)
    players: Counter[asyncio.Task[Any]] = field(default_factory=Counter)
    over: str = ""
    """Why no agent plays; "" while they do."""

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Around what must not outlive the episode. Raises RuntimeError when that is over, and CancelledError again
        in an env that was cancelled and has swallowed it.
        """
        if self.over:
            raise RuntimeError(self.over)
        player = asyncio.current_task()
        assert player is not None
        if player.cancelling():
            raise asyncio.CancelledError
        self.players[player] += 1
        try:
            yield
        finally:
            self.players[player] -= 1

    def forget(self, trace: Trace) -> None:
        """Drop one of those that were minted: another has taken its place."""
        self.minted[:] = [each for each in self.minted if each is not trace]

    async def clear(self) -> None:
        """The episode is over: end what its env began and left open, in tasks of its own too."""
        self.over = "the episode is over, and no agent of it plays any more"
        strays = [player for player in +self.players if player is not asyncio.current_task()]
        for stray in strays:
            stray.cancel()
        await asyncio.gather(*strays, return_exceptions=True)
        for rollout in self.talks:
            await rollout.close()
        for loan in self.loans.values():
            if loan.owned and not loan.over:
                loan.over = True
                await closed(loan.sandbox)


class Agent:
    """One seat during one episode.

    `trainable` says whether its traces are to be learned from; an env that plays a judge or a user says they are not.
    """

    def __init__(self, name: str, seat: Seat, table: Table) -> None:
        self.name = name
        self.seat = seat
        self.trainable = True
        self._table = table

    async def run(
        self,
        task: Task,
        *,
        runtime: Sandbox | None = None,
        tools: Sequence[AnyToolset] = (),
        on_trace: OnTrace | None = None,
        collect_artifacts: bool = False,
    ) -> Trace:
        """Play one rollout of `task` to its end and return its trace, which also joins the episode.

        `runtime` is a sandbox that is lent: the rollout works in it as it is and leaves it running. `tools` are
        toolsets beside the task's own; several rollouts may have the same. With `collect_artifacts` what the task
        declares is in `trace.state.artifacts` afterwards.

        What goes wrong is on the trace. Raised are cancellation, ValueError or TypeError for a loan that does not
        fit the task, and ValueError for tools that the harness cannot call.
        """
        loan = self._loan(task, runtime)
        self._check_tools(tools)
        earlier: list[Trace] = []
        async with self._table.playing(), self._table.room:
            while True:
                trace = self.mint(task)
                if on_trace is not None:
                    on_trace(trace)
                given = (self.seat, task, trace, self._table.on_phase, loan, collect_artifacts, tools)
                await _rollout_of(*given).play()
                if loan is not None or not may_retry(self.seat.retries, [*earlier, trace]):
                    break
                earlier.append(trace)
                self._table.forget(trace)
                await asyncio.sleep(backoff(len(earlier)))
        keep_earlier(trace, earlier)
        self._table.traces.append(trace)
        return trace

    @asynccontextmanager
    async def interaction(
        self,
        task: Task,
        *,
        runtime: Sandbox | None = None,
        tools: Sequence[AnyToolset] = (),
        on_trace: OnTrace | None = None,
    ) -> AsyncIterator[Interaction]:
        """One rollout that is played turn by turn: `await talk.turn("...")`. It is graded when the context ends.

        A rollout that cannot be opened raises; what goes wrong later is on the trace and ends the conversation. Raises
        ValueError for a task in stages, of which each has its own.
        """
        if task.in_stages() is not None:
            raise ValueError(f"task {task.name} is played in stages, and cannot be talked through")
        loan = self._loan(task, runtime)
        self._check_tools(tools)
        trace = self.mint(task)
        if on_trace is not None:
            on_trace(trace)
        rollout = Rollout(self.seat, task, trace, self._table.on_phase, loan, False, tools)
        talk = Interaction(rollout, self._table.room)
        self._table.talks.append(rollout)
        try:
            async with self._table.playing():
                await talk.open()
                yield talk
                await talk.close()
            self._table.traces.append(trace)
        except BaseException:
            await rollout.close()
            # Without a status, what ended it is what is to be said of it.
            if trace.status is not None and not self._table.over:
                self._table.traces.append(trace)
            raise

    @asynccontextmanager
    async def provision(self, task: Task | None = None) -> AsyncIterator[Sandbox]:
        """A sandbox such as a rollout of `task` would get, to be lent to rollouts; it is closed at the end."""
        task = seated_task(self.seat, task or Task(TaskData()))
        own, shared = toolsets_of(task)
        image = await image_of(self.seat.image_for, task)
        sandbox = await opened(self.seat.provider, task, image, mounts=await tool_mounts((*own, *shared)))
        loan = Loan(sandbox, task.networks.at_first, image if task.origin.compose is None else None)
        self._table.loans[sandbox.id] = loan
        try:
            async with self._table.playing():
                yield sandbox
        finally:
            if not loan.over:
                loan.over = True
                await closed(sandbox)

    def mint(self, task: Task) -> Trace:
        """The trace of a rollout that is about to start."""
        seat, filed = self.seat, self._table.task or task
        trace: Trace = Trace(
            task=filed.name,
            task_digest=filed.digest,
            slot=self._table.slot,
            agent=self.name,
            harness=seat.harness.name,
            model=seat.model,
            sandbox_provider=seat.provider.name,
            trainable=self.trainable,
        )
        self._table.minted.append(trace)
        return trace

    def _check_tools(self, tools: Sequence[AnyToolset]) -> None:
        harness = self.seat.harness
        if tools and harness.calls_tools is None:
            raise ValueError(f"the harness {harness.name} cannot call tools: have {tool_callers()} play")

    def _loan(self, task: Task, runtime: Sandbox | None) -> Loan | None:
        if runtime is None:
            return None
        loan = self._table.loans.setdefault(runtime.id, Loan(runtime, None, None, owned=False))
        loan.check(task)
        return loan


def _rollout_of(seat: Seat, task: Task, *given: Any) -> Rollout:
    if (staging := seated_task(seat, task).in_stages()) is None:
        return Rollout(seat, task, *given)
    return StagedRollout(staging, seat, task, *given)


def agent_at(seat: Seat, name: str = "agent") -> Agent:
    """An agent outside any env; whoever asks for it has opened what the seat is made of, and closes it."""
    return Agent(name, seat, Table(None, Slot(), lambda *_: None, []))


class Agents:
    """The agents of one episode by name: `agents.agent`, `agents["judge"]`."""

    def __init__(self, agents: dict[str, Agent]) -> None:
        self._agents = agents

    def __getattr__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            raise AttributeError(f"this env has no agent {name!r}; it has {', '.join(self._agents)}") from None

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())
