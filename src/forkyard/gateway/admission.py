"""Whether a call may leave: the agent's limits, its task's stops, the budgets of the rollout and of the run."""

from __future__ import annotations

from forkyard.gateway.budget import ASSUMED_OUTPUT, LEAST_OUTPUT, Amount, Hold, Ledger, OverBudgetError, Till
from forkyard.gateway.capabilities import confine
from forkyard.gateway.dialects import Answered, Asked
from forkyard.gateway.hooks import request_passed
from forkyard.gateway.prompts import Prompt, Prompts, measure
from forkyard.gateway.terms import Draft, RefusedError, StopError, Terms
from forkyard.task.boundary import stopped
from forkyard.trace import Usage, Used, limit_reached

AT_ONCE = 256
"""Calls of one rollout under way at once; more of them wait, and leave connections to other rollouts."""


class Admission:
    """Admits the calls of one route. Calls under way count as turns, so that calls at once stay within a limit."""

    def __init__(self, terms: Terms, run: Ledger, till: Till) -> None:
        self._terms = terms
        self._own = Ledger(terms.budget, "judge" if terms.purpose == "judge" else "rollout")
        self._ledgers = (self._own, run)
        self._till = till
        self._prompts = Prompts()
        self._under_way = 0
        self._left = Used()
        self._sized = any(ledger.budget.counts_tokens for ledger in self._ledgers)

    @property
    def spent(self) -> Amount:
        """What this route has spent."""
        return self._own.spent

    async def admit(self, draft: Draft) -> tuple[Hold, Prompt | None]:
        """Wait until a call may leave, and set aside what it may take. Raises StopError, RefusedError without a price.

        A call whose client sets no bound to its reply is given one when a budget depends on it.
        """
        await self._has_room()
        self._under_way += 1
        try:
            if stop := await self._stop_of_task():
                raise StopError(stop)
            await request_passed(self._terms, draft)
            confine(self._terms, draft)
            if not self._sized:
                return await self._till.hold(self._ledgers, lambda: Amount(calls=1)), None
            return await self._hold_tokens(draft)
        except OverBudgetError as err:
            self.over()
            raise StopError("budget", err) from None
        except BaseException:
            self.over()
            raise

    def over(self, prompt: Prompt | None = None, tokens: int = 0, total: int = 0) -> None:
        """An admitted call has ended; its prompt came to so many tokens."""
        self._under_way -= 1
        if prompt is not None and total:
            self._prompts.learn(prompt, tokens, total)
        self._till.settled()

    def left(self, asked: Asked, answered: Answered) -> None:
        """A client went before the end of a reply it had begun to read: that is a turn, and its tokens are guessed.

        The record holds what was reported alone; the agent's limits hold for those who leave early, too.
        """
        said, told = answered.message or {}, answered.usage
        if any(said.get(name) for name in ("content", "tool_calls", "reasoning_content")):
            self._left.steps += 1
            guess = Usage(0 if told.input else _guess(asked.messages), max(0, _guess(said) - told.output))
            self._left.usage.add(guess)

    async def _stop_of_task(self) -> str | None:
        task = self._terms.task if self._terms.purpose == "agent" else None
        return None if task is None else await stopped(task, self._terms.trace)

    async def _has_room(self) -> None:
        """Wait while calls under way may bring the agent to its limit of turns, or are as many as there may be."""
        trace, limits = self._terms.trace, self._terms.limits
        while True:
            if (reached := limit_reached(trace, limits, self._left)) is not None:
                raise StopError(reached)
            steps = trace.steps + self._left.steps + self._under_way
            if self._under_way < AT_ONCE and (limits.max_turns is None or steps < limits.max_turns):
                return
            await self._till.change()

    async def _hold_tokens(self, draft: Draft) -> tuple[Hold, Prompt]:
        price = draft.price
        if price is None and any(ledger.budget.usd is not None for ledger in self._ledgers):
            why = f"there is a budget in USD, and no price is known for {draft.model}: give one by --prices"
            raise RefusedError(400, why, "no_price")
        prompt = measure(draft.body | draft.changes)
        tokens = self._prompts.at_most(prompt)
        bound = draft.asked.max_output

        def need() -> Amount:
            rooms = [ledger.room(tokens, price, draft.asked.choices) for ledger in self._ledgers]
            output = bound or max(LEAST_OUTPUT, min(ASSUMED_OUTPUT, *rooms))
            whole = output * draft.asked.choices
            return Amount(price.at_most(tokens, whole) if price else 0.0, tokens + whole, 1)

        hold = await self._till.hold(self._ledgers, need)
        if bound is None:
            name = draft.dialect.output_limits[0]
            draft.changes[name] = draft.asked.params[name] = (hold.amount.tokens - tokens) // draft.asked.choices
        return hold, prompt


def _guess(said: object) -> int:
    return len(str(said)) // 4
