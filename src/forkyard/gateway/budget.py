"""Budgets: what may be spent, what was, and what calls under way have set aside.

A call sets aside the most it can cost before it leaves and settles when it has ended, so that calls at the same time
can never pass a budget together. A call that fits once others have settled waits for them; it is refused when what is
spent already leaves no room for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from forkyard.gateway.prices import Price

ASSUMED_OUTPUT = 16_384
"""What a reply may take under a budget when its client sets no bound."""
LEAST_OUTPUT = 16
"""With room for fewer tokens than these a call makes no sense."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent; None is no bound. `tokens` are input and output together."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether the size of calls matters to it."""
        return self.usd is not None or self.tokens is not None


NO_BUDGET = Budget()

Whose = Literal["rollout", "judge", "run"]
_NAMED: dict[Whose, str] = {"rollout": "this rollout", "judge": "this judge", "run": "the run"}


@dataclass(slots=True)
class Amount:
    """An amount of all three."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0

    def add(self, other: Amount, sign: int = 1) -> None:
        """Add another amount to this one, or take it away."""
        self.usd += sign * other.usd
        self.tokens += sign * other.tokens
        self.calls += sign * other.calls


@dataclass(slots=True)
class Ledger:
    """One budget's book."""

    budget: Budget
    whose: Whose
    spent: Amount = field(default_factory=Amount)
    held: Amount = field(default_factory=Amount)
    refused: str | None = None

    def lacks(self, need: Amount, *, held: bool) -> str | None:
        """What there is no room for, as a sentence; with `held`, what is set aside counts too."""
        used = Amount(self.spent.usd, self.spent.tokens, self.spent.calls)
        if held:
            used.add(self.held)
        bounds = (
            (self.budget.calls, used.calls, need.calls, "calls"),
            (self.budget.tokens, used.tokens, need.tokens, "tokens"),
            (self.budget.usd, used.usd, need.usd, "USD"),
        )
        for limit, spent, asked, unit in bounds:
            if limit is not None and (spent + asked > limit + _ROUNDING or (unit != "calls" and spent >= limit)):
                return (
                    f"budget of {limit:g} {unit} for {_NAMED[self.whose]}: {spent:.6g} are spent, "
                    f"and the next call may take {asked:.6g}"
                )
        return None

    def on_record(self) -> dict[str, Any]:
        """Whose budget it is and how large, as a rollout that it ended says in its `info`."""
        return {"whose": self.whose, **asdict(self.budget)}

    def room(self, tokens: int, price: Price | None, replies: int) -> int:
        """How many tokens each of so many replies to such a prompt may have, once every call under way has settled."""
        rooms = [ASSUMED_OUTPUT]
        if self.budget.tokens is not None:
            rooms.append((self.budget.tokens - self.spent.tokens - tokens) // replies)
        if self.budget.usd is not None and price is not None and price.output:
            left = self.budget.usd - self.spent.usd - price.at_most(tokens, 0)
            rooms.append(int(left / price.at_most(0, 1)) // replies)
        return min(rooms)


class OverBudgetError(Exception):
    """A budget has no room for a call."""

    def __init__(self, ledger: Ledger, why: str) -> None:
        super().__init__(why)
        self.ledger = ledger


@dataclass(slots=True)
class Hold:
    """What one call has set aside, in every book it counts in."""

    ledgers: Sequence[Ledger]
    amount: Amount
    till: Till
    open: bool = True

    def settle(self, spent: Amount) -> None:
        """Put down what it took instead; said once."""
        if self.open:
            self.open = False
            for ledger in self.ledgers:
                ledger.held.add(self.amount, -1)
                ledger.spent.add(spent)
            self.till.settled()


class Till:
    """Where calls wait for others to settle."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def settled(self) -> None:
        """Let everybody who waits look again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = set()

    async def change(self) -> None:
        """Wait until somebody has settled."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    async def hold(self, ledgers: Sequence[Ledger], needed: Callable[[], Amount]) -> Hold:
        """Set aside what is needed as soon as there is room. Raises OverBudgetError when there will be none."""
        while True:
            need = needed()
            for ledger in ledgers:
                if why := ledger.lacks(need, held=False):
                    ledger.refused = why
                    raise OverBudgetError(ledger, why)
            if not any(ledger.lacks(need, held=True) for ledger in ledgers):
                break
            await self.change()
        for ledger in ledgers:
            ledger.held.add(need)
        return Hold(ledgers, need, self)
