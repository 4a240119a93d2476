"""The gateway: one per run. It holds the keys, the prices and the run's budget, and opens a route for each rollout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from forkyard.errors import ConfigError
from forkyard.gateway.budget import NO_BUDGET, Budget, Ledger, Till
from forkyard.gateway.dialects import NAMES, Dialect
from forkyard.gateway.pool import Pool
from forkyard.gateway.prices import Prices, load_prices
from forkyard.gateway.route import Route
from forkyard.gateway.terms import NO_LIMITS, OnCall, Purpose, Terms
from forkyard.gateway.upstreams import Upstream, Upstreams
from forkyard.model import Sampling
from forkyard.model.protocol import PLAIN
from forkyard.secrets import Secrets
from forkyard.task import Task
from forkyard.trace import AgentLimits, Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a provider may take, in seconds: to be reached, between two pieces of a reply, and for all of it.

    A client whose stream is held back, because a task's code looks at replies, is given its head after `silence`.
    """

    connect: float = 30.0
    idle: float = 600.0
    total: float = 3600.0
    silence: float = 60.0

    @property
    def timeouts(self) -> Mapping[str, float]:
        """The same as the HTTP client wants them."""
        return {"connect": self.connect, "read": self.idle, "write": self.idle, "pool": self.total}


PATIENT = Bounds()


class Gateway:
    """The one way to every model of a run. `close` ends its connections; routes are closed by whoever opened them."""

    def __init__(
        self,
        upstreams: Upstreams,
        prices: Prices | None = None,
        budget: Budget = NO_BUDGET,
        *,
        bounds: Bounds = PATIENT,
    ) -> None:
        self.upstreams = upstreams
        self.prices = load_prices() if prices is None else prices
        self.bounds = bounds
        self.ledger = Ledger(budget, "run")
        self.till = Till()
        self.secrets: Secrets = upstreams.secrets
        self.keys = upstreams.keys
        self.pool = Pool()

    def open(
        self,
        trace: Trace,
        model: str | None,
        *,
        sampling: Sampling = PLAIN,
        limits: AgentLimits = NO_LIMITS,
        budget: Budget = NO_BUDGET,
        purpose: Purpose = "agent",
        task: Task[Any, Any, Any] | None = None,
        on_call: OnCall | None = None,
    ) -> Route:
        """A rollout's way to its model; without one the client chooses. Raises ConfigError, as `problems` finds it."""
        if model is not None and (problem := self._unpriced(model, budget)):
            raise ConfigError(problem)
        return Route(self, Terms(trace, model, sampling, limits, budget, purpose, task, on_call))

    def problems(self, model: str, dialect: str = "chat", budget: Budget = NO_BUDGET) -> list[str]:
        """Why a model cannot be asked in a dialect under a budget, one sentence each; for a run before it starts."""
        problems = self.upstreams.problems(model, dialect)
        unpriced = self._unpriced(model, budget)
        return [*problems, unpriced] if unpriced else problems

    def priced(self, model: str) -> bool:
        """Whether a budget in money can be kept for a model."""
        return self._unpriced(model, Budget(usd=0.0)) is None

    def upstream(self, model: str, dialect: Dialect) -> Upstream:
        """Who is asked for a model in a dialect, or else in another. Raises ConfigError when there is nobody at all."""
        for name in (dialect.name, *NAMES):
            with suppress(LookupError):
                return self.upstreams.find(model, name)
        raise ConfigError(*self.upstreams.problems(model, dialect.name))

    @property
    def spent_usd(self) -> float:
        """What all calls of known price have cost, and what those may have cost that told nothing."""
        return self.ledger.spent.usd

    @property
    def exhausted(self) -> str | None:
        """Why no further rollout can pay for a call, as far as it is known."""
        return self.ledger.refused

    async def close(self) -> None:
        """Let go of connections."""
        await self.pool.close()

    def _unpriced(self, model: str, budget: Budget) -> str | None:
        if budget.usd is None and self.ledger.budget.usd is None:
            return None
        names = [entry.alias for entry in self.upstreams.entries if entry.alias and fnmatchcase(model, entry.model)]
        return None if self.prices.of(*names) else self.prices.problem(model)
