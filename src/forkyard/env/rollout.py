"""One rollout: fork, set up, act, grade. The order of its phases is the contract of the env API.

fork      a sandbox from the task's image, built when it is missing, or one that is lent
setup     Task.setup, then Harness.setup; the tools and the route to the model open
agent     Harness.launch, until it is done or its deadline passes, once or once for each turn of a conversation
seal      the route to the model and the tools close for good
finalize  Task.finalize; what the task declares is collected, when somebody asked for it
grade     Harness.score, then hidden files enter, Task.score (see `forkyard.grade`), the logs are kept
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from forkyard.env.boxes import image_of, opened, seated_task, working_directory
from forkyard.env.judges import JudgeRoutes, judges_money, judging
from forkyard.env.loan import Loan
from forkyard.env.phases import grading_of, let_go, limits_noted, note_visits, on_record, timed
from forkyard.env.seat import OnPhase, Seat, grading_mode
from forkyard.errors import (
    EngineLost,
    ForkyardError,
    HarnessError,
    SandboxError,
    SandboxLost,
    StoppedError,
    TaskError,
    boundary,
)
from forkyard.grade import (
    Grading,
    collect_declared,
    graded,
    keep_ungraded,
    program_failure,
    unheard,
    unknown,
)
from forkyard.harness import ModelContext
from forkyard.sandbox import NO_NETWORK, Sandbox
from forkyard.task import AnyToolset, Task, VerifierMode, invoke
from forkyard.tools import RolloutTools
from forkyard.trace import Trace

if TYPE_CHECKING:
    from forkyard.gateway import Route


class Rollout:
    """One rollout under way: its sandbox, its route to the model, and how far it has come.

    Everything that goes wrong is on the trace; only cancellation is raised.
    """

    def __init__(
        self,
        seat: Seat,
        task: Task,
        trace: Trace,
        on_phase: OnPhase,
        loan: Loan | None,
        collect: bool,
        tools: Sequence[AnyToolset] = (),
    ) -> None:
        self.seat = seat
        self.task = seated_task(seat, task)
        self.trace = trace
        self.ended = False
        self._on_phase = on_phase
        self._loan = loan
        self._collect = collect
        self._sandbox: Sandbox | None = loan.sandbox if loan else None
        self._route: Route | None = None
        self._given_tools = tools
        self._tools = RolloutTools(self.task, trace, tools)
        self._context = ModelContext()
        self._acted = False
        self._touched = loan is not None and loan.touched  # an agent has been in the sandbox
        self._left = self.task.data.timeout.agent  # seconds
        trace.state = type(task).state_type()()

    async def play(self) -> None:
        """The whole of it, with one segment of the agent's."""
        try:
            await self.open()
            if self.going:
                await self.act()
            await self.finish()
        finally:
            await self.close()

    @property
    def going(self) -> bool:
        """Whether the agent may act: nothing has failed and nothing has stopped it."""
        return self.trace.status is None and not self.trace.errors

    async def open(self) -> None:
        """Get a sandbox, set it up, and open the route to the model."""
        with self._on_record():
            await self._fork()
            self._on_phase(self.trace, "setup")
            with timed(self.trace.timing, "setup_ms"):
                await self._set_up()
            if self.going:
                await self._connect()

    async def act(self) -> None:
        """Let the harness act once, on the conversation as it stands, within what is left of the agent's time."""
        with self._on_record():
            if not self._acted:
                self._on_phase(self.trace, "agent")
                if self.task.networks.setup is not None:
                    await self._running.set_network(self.task.network or NO_NETWORK)
            self._acted = self._touched = True
            if self._loan is not None:
                self._loan.touched = True
            with timed(self.trace.timing, "agent_ms"), limits_noted(self.trace, self._sandbox):
                await self._launch()

    async def finish(self) -> None:
        """End the agent's part: seal, finalize, collect, grade. What is settled already is not graded."""
        with self._on_record():
            await self._seal()
            if self._acted and self.trace.status is None:
                await self._finalize()
                await self._score_harness()
                if self.trace.metrics:  # what is not the verifier's stands when the rollout is graded again
                    self.trace.info["agent_metrics"] = dict(self.trace.metrics)
                if not self.task.scoring_deferred:
                    self._on_phase(self.trace, "grade")
                    await self._grade()
            elif self._acted and self._sandbox is not None:
                await keep_ungraded(await self._grading("forked"), self.trace, self._sandbox)

    async def close(self) -> None:
        """Let go of everything. What goes wrong now is noted and changes no score."""
        if self.ended:
            return
        self.ended = True
        try:
            await self._seal()
        finally:
            await self._leave_sandbox()
            self._on_phase(self.trace, "done")

    @property
    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxLost("the rollout has no sandbox")
        return self._sandbox

    @contextmanager
    def _on_record(self) -> Iterator[None]:
        with on_record(self.trace, lambda: self._touched):
            try:
                yield
            except ForkyardError as err:
                if self._loan is None or not self._loan.over:
                    raise
                raise SandboxError(f"the lent sandbox was closed by its owner during the rollout: {err}") from err

    async def _fork(self) -> None:
        self._on_phase(self.trace, "fork")
        if self._loan is not None:
            self.trace.info["lent"] = self._running.id
            return
        image, mounts = await image_of(self.seat.image_for, self.task), await self._tools.mounts()
        with timed(self.trace.timing, "fork_ms"):
            self._sandbox = await opened(self.seat.provider, self.task, image, mounts=mounts)

    async def _set_up(self) -> None:
        task = self.task
        try:
            async with asyncio.timeout(task.data.timeout.setup):
                with boundary(TaskError, f"task {type(task).__name__} setup"):
                    await invoke(task.setup, task=task.data, trace=self.trace, runtime=self._running)
                await self._set_up_harness()
        except TimeoutError:
            self.trace.record_timeout("setup")
            self.trace.settle(unknown(self._touched), f"setup took longer than {task.data.timeout.setup:g} s")

    async def _set_up_harness(self) -> None:
        harness = self.seat.harness
        with boundary(HarnessError, f"harness {harness.name} setup"):
            await harness.setup(self.task, self._running)
        await self._tools.open(self._running)

    async def _connect(self) -> None:
        """Open this rollout's way to its model."""
        seat = self.seat
        if seat.gateway is None or seat.model is None:
            self._context = await self._with_tools(ModelContext(sampling=seat.sampling, limits=seat.limits))
            return
        from forkyard.gateway import NO_BUDGET  # a rollout without a model does without the gateway

        budget = seat.budget or NO_BUDGET
        self._route = route = seat.gateway.open(
            self.trace, seat.model, sampling=seat.sampling, limits=seat.limits, budget=budget, task=self.task
        )
        endpoint = await route.listen(self._running) if seat.harness.needs_endpoint else None
        self._context = await self._with_tools(ModelContext(route.model(), seat.sampling, seat.limits, endpoint))

    async def _with_tools(self, context: ModelContext) -> ModelContext:
        how = self.seat.harness.calls_tools
        servers = await self._tools.listen(self._running) if how == "mcp" else {}
        return replace(context, toolbox=self._tools.toolbox, tools=servers)

    async def _launch(self) -> None:
        seat, trace = self.seat, self.trace
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                with boundary(HarnessError, f"harness {seat.harness.name}"):
                    launch = seat.harness.launch(self._context, self.task, trace, self._running)
                    await self._tools.guarding(launch)
        except TimeoutError as err:
            has_model, asks_itself = self._context.model is not None, seat.harness.needs_endpoint
            failure = unheard(trace, has_model=has_model, asks_itself=asks_itself)
            if self._failure is None and failure is not None:
                raise failure from err
            trace.record_timeout("agent")
        except StoppedError as err:
            trace.stop(err.condition)
        except HarnessError as err:
            if self._route is None or not self._route.refused:
                raise (self._failure or program_failure(trace, err)) from err
            trace.stop(self._route.refused)  # its program gave up when it was refused another call
        finally:
            if self._left is not None:
                self._left = max(0.0, self._left - (time.monotonic() - started))
            self._narrate()
        if self._failure is not None:
            raise self._failure
        trace.stop("agent_completed")

    @property
    def _failure(self) -> TaskError | None:
        """What the task's own code raised at a call of the model; a program in the sandbox was only told of it."""
        return None if self._route is None else self._route.failure

    def _narrate(self) -> None:
        """A program inside the sandbox tells nothing itself: its conversation is what the model was asked."""
        trace = self.trace
        if not trace.messages and (main := trace.graph.main) is not None:
            trace.messages.extend(main.messages)

    async def _seal(self) -> None:
        """From here on nothing of the agent's reaches a model or a tool, and no key of this rollout opens anything."""
        try:
            if self._route is not None:
                route, self._route = self._route, None
                await route.close()
        finally:
            await self._tools.close()

    async def _finalize(self) -> None:
        """Like the agent's, this deadline is a stop and no failure: grading goes on."""
        task, trace = self.task, self.trace
        try:
            async with asyncio.timeout(task.data.timeout.finalize_seconds):
                with boundary(TaskError, f"task {type(task).__name__} finalize"):
                    await invoke(task.finalize, task=task.data, trace=trace, runtime=self._running)
        except TimeoutError:
            trace.record_timeout("finalize")
        if self._collect and not trace.state.artifacts:
            trace.state.artifacts = await collect_declared(
                task, trace, self._running, await working_directory(self.seat, task)
            )

    async def _score_harness(self) -> None:
        """The harness's own metrics, taken where the agent worked."""
        harness = self.seat.harness
        try:
            async with asyncio.timeout(self.task.data.timeout.scoring_seconds):
                with boundary(HarnessError, f"harness {harness.name} score"):
                    await harness.score(self.trace, self._running)
        except TimeoutError:
            self.trace.is_timeout = True
        except EngineLost:
            raise
        except ForkyardError as err:  # metrics of the agent's program are not what the task is worth
            self.trace.record_error(err)

    async def _grade(self) -> None:
        seat = self.seat
        usd, spent = self._judges_money()
        async with judging(seat.gateway, self.trace, seat.model, usd, spent) as judges:
            await graded(await self._grading(grading_mode(seat, self.task), judges), self.trace, self._running)

    async def _grading(self, mode: VerifierMode, judges: JudgeRoutes | None = None) -> Grading:
        lent = self._loan is not None
        return await grading_of(self.seat, self.task, self.trace, mode, self._leave_sandbox, lent=lent, judges=judges)

    def _judges_money(self) -> tuple[float | None, float]:
        """What the agent may spend, which bounds its judges as well, and what these have spent already."""
        return judges_money(self.seat), 0.0

    async def _leave_sandbox(self) -> None:
        """The rollout's part with its sandbox is over: its own is closed, a lent one stays as it is."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        note_visits(self.trace, sandbox)
        if self._loan is None:
            await self._keep_disk(sandbox)
            await let_go(self.trace, sandbox)

    async def _keep_disk(self, sandbox: Sandbox) -> None:
        """What was graded in a fork can be graded again: its disk is sealed as the agent left it."""
        status, mode = self.trace.status, self.trace.verifier.get("mode")
        graded_there = mode == "forked" and status is not None and status.graded
        if self.seat.keep_disk is not None and graded_there and sandbox.info.state == "stopped":
            await self.seat.keep_disk(self.trace, self.task, sandbox)
