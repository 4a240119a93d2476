"""How the judges of a task reach a model: through routes of their own, which nothing of the agent's ever had."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from forkyard.errors import TaskError
from forkyard.model import Endpoint, Reply, Sampling
from forkyard.sandbox import Sandbox
from forkyard.trace import Message, Trace

if TYPE_CHECKING:
    from forkyard.env.seat import Seat
    from forkyard.gateway import Gateway, Route

MOST_USD = 5.0


def judges_money(seat: Seat) -> float | None:
    """What the agent of a seat may spend, which bounds its judges as well; None where it has no bound."""
    return None if seat.budget is None else seat.budget.usd


@asynccontextmanager
async def judging(
    gateway: Gateway | None, trace: Trace, model: str | None, agents_usd: float | None, spent: float = 0.0
) -> AsyncIterator[JudgeRoutes | None]:
    """The routes of one rollout's judges, which are closed at the end; None where nobody can be asked."""
    if gateway is None:
        yield None
        return
    judges = JudgeRoutes(gateway, trace, model, agents_usd, spent)
    try:
        yield judges
    finally:
        await judges.close()


class JudgeRoutes:
    """One rollout's routes for judges, each opened when it is first asked for. An `Ask`; `serve` is a `Serve`.

    All of them together may spend what the agent may, at most `MOST_USD`; `spent` is what was before. Where the agent
    has no bound in money, a model without a price can be asked too, and has none either.
    """

    def __init__(
        self, gateway: Gateway, trace: Trace, model: str | None, agents_usd: float | None, spent: float = 0.0
    ) -> None:
        self._gateway, self._trace, self._model = gateway, trace, model
        self._most_usd = max(0.0, (MOST_USD if agents_usd is None else min(agents_usd, MOST_USD)) - spent)
        self._all_paid = agents_usd is not None
        self._paid: Route | None = None
        self._unpriced: Route | None = None

    async def __call__(self, messages: Sequence[Message], sampling: Sampling, model: str | None = None) -> Reply:
        """The model's reply. Raises ModelError, and TaskError when no model is named anywhere."""
        name = model or self._model
        if name is None:
            raise TaskError("a judge names no model, and the run has none: give the judge a `model`")
        route = self._paying() if self._all_paid or self._gateway.priced(name) else self._free()
        return await route.model(name).complete(messages, (), sampling)

    async def serve(self, sandbox: Sandbox) -> Endpoint:
        """An address in a verifier's sandbox, which names its model itself. Raises SandboxError.

        It is for whoever was given its key: what the agent left running may stand beside the verifier.
        """
        return await self._paying().listen(sandbox, f"fy-{secrets.token_urlsafe(24)}")

    async def close(self) -> None:
        """Let nothing more through; what was spent goes on the record."""
        try:
            if self._unpriced is not None:
                await self._unpriced.close()
        finally:
            if self._paid is not None:
                await self._paid.close()
                self._trace.verifier["judge_cost_usd"] = self._paid.admission.spent.usd

    def _paying(self) -> Route:
        from forkyard.gateway import Budget

        if self._paid is None:
            self._paid = self._gateway.open(self._trace, None, purpose="judge", budget=Budget(usd=self._most_usd))
        return self._paid

    def _free(self) -> Route:
        if self._unpriced is None:
            self._unpriced = self._gateway.open(self._trace, None, purpose="judge")
        return self._unpriced
