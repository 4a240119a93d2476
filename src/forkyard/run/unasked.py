"""Lines without a score because the verifier's judge was refused: which can be played again now."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from forkyard.env.config import BudgetConfig
from forkyard.errors import JudgeError
from forkyard.run.gateways import make_gateway
from forkyard.run.plan import Plan
from forkyard.trace import Status
from forkyard.trace.store import Record

if TYPE_CHECKING:
    from forkyard.gateway import Gateway


def askable(plan: Plan) -> Callable[[Record], bool]:
    """Tells whether the judges that a line was refused can be asked now, as far as can be known before they are.

    The rest stays as it is, for good: a model of which nobody knows the price may be an invention of the agent's. What
    is returned raises ConfigError for tables that cannot be read.
    """

    @cache
    def gateway() -> Gateway:
        budget = BudgetConfig(usd=plan.budget_usd)
        return make_gateway(plan.upstreams, plan.base_url, plan.api_key_env, plan.prices, budget)

    def can_be_asked(record: Record) -> bool:
        if record.get("status") != Status.SCORING_ERROR or not _was_refused(record):
            return False
        lacking = [call for call in _dicts(record.get("calls")) if call.get("fault") == "run"]
        return bool(lacking) and all(_is_mended(gateway(), call) for call in lacking)

    return can_be_asked


def _was_refused(record: Record) -> bool:
    return any(error.get("type") == JudgeError.kind for error in _dicts(record.get("errors")))


def _is_mended(gateway: Gateway, call: Record) -> bool:
    model, dialect, refused = str(call.get("model")), str(call.get("dialect")), call.get("refused")
    if gateway.upstreams.problems(model, dialect):
        return False
    if refused == "no_price":
        return gateway.priced(model)
    return refused in (None, "no_upstream")  # None: the provider refused the key, and another may be there now


def _dicts(value: object) -> list[Record]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
