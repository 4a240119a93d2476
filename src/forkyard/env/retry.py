"""Whether a rollout that failed is played again, and what of the failed one stays on the record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from forkyard.env.config import RetryConfig, RetryRule
from forkyard.trace import Status, Trace, costs


def may_retry(config: RetryConfig, tries: Sequence[Trace]) -> bool:
    """Whether one more try is allowed after `tries`, the last of which has just ended.

    Only a failure of the infrastructure ever is one, and none that would come again: what an agent can provoke earns
    no second try, whatever the rules say. Of the last error the first rule that fits decides, by how often errors of
    it came up so far; without one it is `max_retries`.
    """
    last = tries[-1]
    if last.status is not Status.INFRASTRUCTURE_ERROR or not last.errors:
        return False
    error = last.errors[-1]
    if error["lasting"] or error["fatal"]:
        return False
    rule = _rule_for(config, error)
    if rule is None:
        used = sum(1 for trace in tries[:-1] if trace.errors and _rule_for(config, trace.errors[-1]) is None)
        return used < config.max_retries
    used = sum(1 for trace in tries[:-1] if trace.errors and _rule_for(config, trace.errors[-1]) is rule)
    return used < rule.max_retries


def keep_earlier(trace: Trace, earlier: Sequence[Trace]) -> None:
    """Put earlier tries on the record of the last one; when that failed as well, their errors stand before its own."""
    if trace.errors:
        trace.errors[:0] = [error for failed in earlier for error in failed.errors]
    costs.keep_attempts(trace, "agent", [(failed.reason, [failed]) for failed in earlier])


def _rule_for(config: RetryConfig, error: dict[str, Any]) -> RetryRule | None:
    return next((rule for rule in config.rules if _fits(rule, error)), None)


def _fits(rule: RetryRule, error: dict[str, Any]) -> bool:
    if rule.type is not None and rule.type not in _names(str(error["type"])):
        return False
    if rule.status_code and not any(_is_code(code, error["status_code"]) for code in rule.status_code):
        return False
    return rule.message is None or re.search(rule.message, str(error["message"])) is not None


def _names(kind: str) -> tuple[str, str]:
    """What an error is called on records, and its class: "model_not_found", "ModelNotFoundError"."""
    return kind, "".join(part.capitalize() for part in kind.split("_")) + "Error"


def _is_code(wanted: int | str, code: int | None) -> bool:
    """Whether a status code is the one named, or of the class named ("5xx")."""
    if code is None:
        return False
    text, pattern = str(code), str(wanted).lower()
    return len(text) == len(pattern) and all(p in ("x", c) for p, c in zip(pattern, text, strict=True))
