"""One call of a model from the moment it may leave: what is known of it, and its end, which is recorded once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkyard.gateway.budget import Amount, Hold
from forkyard.gateway.capabilities import told
from forkyard.gateway.dialects import Answered
from forkyard.gateway.observer import NOTHING
from forkyard.gateway.prompts import Prompt
from forkyard.gateway.terms import Draft
from forkyard.secrets import redact
from forkyard.trace import ModelCall
from forkyard.trace.calls import Fault
from forkyard.values import finite_or_none

if TYPE_CHECKING:
    from forkyard.gateway.route import Route

GONE = "the client went away before the reply had ended"
_NO_FAULT_OF_THE_ASKER = frozenset((401, 408, 429))
PARAMS_LIMIT = 16_384
ERROR_LIMIT = 2000


@dataclass(slots=True)
class Call:
    """A call under way. `end` puts it on the record, however it ended; what comes after that is ignored.

    `good` once it has ended with a reply that was whole.
    """

    route: Route
    draft: Draft
    hold: Hold
    prompt: Prompt | None = None
    started: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    first_byte: float | None = None
    status: int | None = None
    ended: bool = False
    good: bool = False

    def replied(self, status: int) -> None:
        """The provider's reply has begun."""
        self.status = status
        self.first_byte = time.monotonic() - self.clock

    def end(self, answered: Answered = NOTHING, error: str | None = None, refused: str | None = None) -> None:
        """Settle its budgets and put it on the record; `refused` is the code when it could not be sent as it was."""
        if self.ended:
            return
        self.ended, self.good = True, error is None
        draft, price = self.draft, self.draft.price
        cost = price.cost(answered.usage, answered.written) if price and self._told(answered) else None
        self._settle(answered, cost, left=error == GONE)
        shown = None if error is None else str(redact(error, self.route.gateway.secrets))[:ERROR_LIMIT]
        call = ModelCall(
            model=draft.model,
            dialect=draft.dialect.name,
            upstream=draft.upstream.place.url,
            purpose=self.route.purpose,
            request=_bounded(draft.asked.params),
            started=round(self.started, 3),
            seconds=time.monotonic() - self.clock,
            first_byte_seconds=self.first_byte,
            status_code=self.status,
            finish_reason=answered.finish_reason,
            usage=answered.usage,
            cost_usd=cost,
            error=shown,
            refused=refused,
            fault=None if error in (None, GONE) or refused else self._fault(),
            prompt_token_ids=answered.prompt_token_ids,
            token_ids=answered.token_ids,
            logprobs=answered.logprobs,
            policy=told(draft.taken),
        )
        self.route.record(call, draft.asked, answered)

    def _told(self, answered: Answered) -> bool:
        """Whether it is known what the call took: nothing when there was no reply, else what the provider told."""
        return self.status != 200 or bool(answered.usage.total)

    def _fault(self) -> Fault | None:
        """Whose it is that there is no good reply: a status of 4xx mostly says that the request is none."""
        if self.status == 403:  # the run's key does not open the model that was asked for
            return "run"
        asked_wrongly = self.status is not None and 400 <= self.status < 500
        return "provider" if not asked_wrongly or self.status in _NO_FAULT_OF_THE_ASKER else None

    def _settle(self, answered: Answered, cost: float | None, left: bool) -> None:
        """A reply that told no usage counts as all that was set aside; so does one whose client left before its end.

        What such a reply had told by then is only a beginning, and leaving must not be a way around a bound.
        """
        usage, held = answered.usage, self.hold.amount
        spent = Amount(cost or 0.0, usage.total, 1) if self._told(answered) else held
        if left:
            spent = Amount(max(spent.usd, held.usd), max(spent.tokens, held.tokens), 1)
        self.hold.settle(spent)
        if left:
            self.route.admission.left(self.draft.asked, answered)
        self.route.admission.over(self.prompt, usage.input, usage.total)


def _bounded(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request, as far as a record has room for them."""
    kept: dict[str, Any] = {}
    left = PARAMS_LIMIT
    for name, value in params.items():
        try:
            size = len(json.dumps(value)) + len(name)
        except RecursionError:
            continue
        if size <= left:
            kept[name] = finite_or_none(value)
            left -= size
    return kept
