"""A route: one rollout's way to its model. It knows the rollout; the client does not have to say who it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from forkyard.errors import TaskError
from forkyard.gateway.admission import Admission
from forkyard.gateway.call import ERROR_LIMIT, GONE, Call
from forkyard.gateway.dialects import CHAT, Answered, Asked, Dialect
from forkyard.gateway.dialects.base import Body
from forkyard.gateway.listening import Listener, listen
from forkyard.gateway.replays import Replays
from forkyard.gateway.terms import ENDED, Draft, Purpose, RefusedError, StopError, Terms
from forkyard.gateway.transport import RouteTransport
from forkyard.gateway.upstreams import Upstream
from forkyard.model import ChatModel, Endpoint, Model
from forkyard.sandbox import Sandbox
from forkyard.secrets import redact
from forkyard.trace import ModelCall, Status
from forkyard.values import MIB, printable

if TYPE_CHECKING:
    from forkyard.gateway.gateway import Bounds, Gateway

T = TypeVar("T")
RECORD_LIMIT = 512 * MIB
"""What one rollout's calls may put on its record."""
NAME_LIMIT = 200
REFUSALS_KEPT = 32
"""Refusals at one address that go on the record, each of a model for one reason."""
_FOR_WHAT_THE_RUN_LACKS = frozenset(("no_price", "no_upstream"))
BESIDE_AT_ONCE = 8
"""Requests of one rollout that are no calls, under way at once; more of them wait."""


class Route:
    """Opened by `Gateway.open`. Whoever opened it closes it, before anybody grades.

    `refused` is the stop condition of the first call that was refused. `failure` is what the task's own code raised at
    a call: a harness in this process has been raised it, a program in a sandbox was told in words.
    """

    def __init__(self, gateway: Gateway, terms: Terms) -> None:
        self.gateway = gateway
        self.terms = terms
        self.admission = Admission(terms, gateway.ledger, gateway.till)
        self.refused: str | None = None
        self.failure: TaskError | None = None
        self.replays = Replays()
        self._models: dict[str, ChatModel] = {}
        self._stop: StopError | None = None
        self._refusals: set[tuple[str, str]] = set()
        self._recorded = self._counted = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listeners: list[Listener] = []
        self._closed = False
        self._room_beside = asyncio.Semaphore(BESIDE_AT_ONCE)

    @property
    def purpose(self) -> Purpose:
        """Who asks."""
        return self.terms.purpose

    @property
    def bounds(self) -> Bounds:
        """How long a provider may take."""
        return self.gateway.bounds

    def model(self, name: str | None = None) -> Model:
        """The model for a harness in this process: no socket lies in between. Its calls are on the record.

        A route that was opened without a model is told the name of one.
        A refusal reaches the harness as StoppedError. Raises ConfigError when nobody can be asked for the model.
        """
        name = self.terms.model or name or ""
        if name not in self._models:
            place = self.gateway.upstream(name, CHAT).place
            self._models[name] = ChatModel(name, place, transport=RouteTransport(self), recorded=True)
        return self._models[name]

    async def listen(self, sandbox: Sandbox, key: str | None = None) -> Endpoint:
        """Serve this route on the loopback inside a sandbox. Whoever calls there is this rollout; with a `key` only
        those are heard who were told it.
        """
        self._refusals.clear()  # whoever is told of the address is another client, whose refusals count anew
        listener = await listen(self, sandbox, key)
        self._listeners.append(listener)
        endpoint = Endpoint(f"http://127.0.0.1:{listener.port}", self.terms.model or "")
        return endpoint if key is None else replace(endpoint, key=key)

    async def close(self) -> None:
        """The seal: what is under way is cancelled and on the record, and nothing gets through any more."""
        self._closed = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in self._models.values():
            await model.close()

    async def carry(self, work: Coroutine[Any, Any, T]) -> T:
        """Do one request's work, which ends with the route. Raises RefusedError when the route was closed meanwhile."""
        task = self.begin(work)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and not _cancelled_ourselves():
                raise self._ended() from None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin one request's work, which ends with the route."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def check_open(self) -> None:
        """Raise RefusedError once the route is closed."""
        if self._closed:
            raise self._ended()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Room for a request that is no call: a few at once, more wait. Raises RefusedError once calls are refused."""
        async with self._room_beside:
            self.check_open()
            self._check_going()
            yield

    def _check_going(self) -> None:
        if self._stop is not None:
            raise _stopped(self._stop)

    # What becomes of one request.

    def draft(self, dialect: Dialect, body: Body) -> Draft:
        """A request that was read, with what the run decides about it. Raises RefusedError."""
        model, upstream = self.upstream_for(body, dialect)
        changes = dialect.sampled(body, self.terms.sampling) | {"model": upstream.alias or model}
        price = self.gateway.prices.of(upstream.alias or model, model)
        return Draft(dialect, body, dialect.read_request(body | changes), model, upstream, changes, price)

    def upstream_for(self, body: Body, dialect: Dialect) -> tuple[str, Upstream]:
        """The model a request is for, the run's when it has one, and who is asked. Raises RefusedError."""
        model = self.terms.model or body.get("model")
        if not isinstance(model, str) or not model:
            raise RefusedError(400, "the request names no model", "model_not_found")
        return model, self.upstream(model, dialect)

    def upstream(self, model: str, dialect: Dialect) -> Upstream:
        """Who is asked for a model. Raises RefusedError."""
        try:
            return self.gateway.upstreams.find(model, dialect.name)
        except LookupError as err:
            raise RefusedError(400, str(err), "no_upstream") from None

    async def admit(self, draft: Draft) -> Call:
        """A call that may leave. Raises RefusedError when the agent's limits, its task or a budget forbid it.

        Once it has refused one, it refuses all. Raises TaskError when the task's own code fails.
        """
        try:
            self._check_going()
            hold, prompt = await self.admission.admit(draft)
        except StopError as err:
            self.stop(err)
            refused = _stopped(err)
            self.note_refusal(refused, draft.dialect, draft.model)
            raise refused from None
        except RefusedError as err:
            self.note_refusal(err, draft.dialect, draft.model)
            raise
        except TaskError as err:
            self.failure = self.failure or err
            raise
        return Call(self, draft, hold, prompt)

    def stop(self, stop: StopError) -> None:
        """Let no further call through: the agent is stopped."""
        trace = self.terms.trace
        self._stop = stop
        self.refused = self.refused or stop.condition
        if self.purpose == "agent":
            trace.stop(stop.condition)
        if stop.budget and trace.status is None:
            trace.info["over_budget"] = stop.budget.ledger.on_record()
            trace.settle(Status.BUDGET, str(stop.budget))

    def note_refusal(self, refusal: RefusedError, dialect: Dialect, model: object) -> None:
        """Put on the record that a judge was refused a model: its program may tell nobody.

        What an agent is refused is its stop.
        """
        name = printable(model[:NAME_LIMIT]) if isinstance(model, str) else ""
        known = (name, refusal.code) in self._refusals or len(self._refusals) >= REFUSALS_KEPT
        if self.purpose != "judge" or known:
            return
        self._refusals.add((name, refusal.code))
        lacking = refusal.code in _FOR_WHAT_THE_RUN_LACKS or refusal.condition == "budget"
        call = ModelCall(
            model=name,
            dialect=dialect.name,
            purpose="judge",
            started=round(time.time(), 3),
            error=str(redact(str(refusal), self.gateway.secrets))[:ERROR_LIMIT],
            refused=refusal.code,
            fault="run" if lacking else None,
        )
        self.terms.trace.record_call(call)

    def record(self, call: ModelCall, asked: Asked, answered: Answered) -> None:
        """Put a call that has ended on the rollout's record."""
        trace = self.terms.trace
        if self.purpose == "agent":
            call.node = self._commit(call, asked, answered)
            if call.error != GONE:  # whose deadline passed while it waited was not failed by its provider
                if call.error is None:
                    trace.model_failing = None
                else:
                    trace.note_model_failure(call.error)
        trace.record_call(call)
        if self.terms.on_call is not None:
            self.terms.on_call(call, asked, answered)
        if trace.calls:  # otherwise `on_call` has taken it elsewhere
            self._bound_record(call)

    def _bound_record(self, call: ModelCall) -> None:
        """Stop an agent whose record would fill this process's memory."""
        nodes = self.terms.trace.graph.nodes
        self._recorded += sum(len(str(node.message)) for node in nodes[self._counted :])
        self._recorded += len(str(call.request)) + len(call.error or "") + 8 * len(call.prompt_token_ids or ())
        self._counted = len(nodes)
        if self._recorded > RECORD_LIMIT:
            self.stop(StopError("record_limit"))

    def _commit(self, call: ModelCall, asked: Asked, answered: Answered) -> int | None:
        said = answered.message
        reply = said if said and (said.get("content") or said.get("tool_calls") or call.error is None) else None
        if not asked.messages and reply is None:
            return None
        node = self.terms.trace.graph.commit(
            asked.messages,
            reply,
            tools=asked.tools,
            prompt_token_ids=answered.prompt_token_ids,
            token_ids=answered.token_ids,
            logprobs=answered.logprobs,
        )
        return node if reply is not None else None

    def _ended(self) -> RefusedError:
        return RefusedError(409, "this rollout has ended", ENDED, ENDED)


def _stopped(stop: StopError) -> RefusedError:
    return RefusedError(400, f"rollout stopped: {stop}", "rollout_stopped", stop.condition)


def _cancelled_ourselves() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
