"""How long one call goes on asking a provider that fails, and how long it pauses in between."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from forkyard.errors import ModelError
from forkyard.values import backoff

MALFORMED_TRIES = 6
UNREACHABLE_TRIES = 4
FAILING_SECONDS = 120.0  # a restart takes less, and a provider that is broken does not mend in an hour either


class Hope(StrEnum):
    """Whether asking again can help."""

    NONE = "none"  # the same request will fail in the same way
    BUSY = "busy"  # the provider will recover: ask until the time for it is spent
    FAILING = "failing"  # the provider answers 5xx and does not say when to come back: ask for two minutes
    MALFORMED = "malformed"  # the reply was no reply: chance, or a fault of the provider; ask a few times
    UNREACHABLE = "unreachable"  # nothing was ever reached there: likely a wrong address; ask a few times


_TRIES = {Hope.NONE: 1, Hope.MALFORMED: MALFORMED_TRIES, Hope.UNREACHABLE: UNREACHABLE_TRIES}


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that brought no reply. `asked` is the pause in seconds the provider asked for."""

    error: ModelError
    hope: Hope = Hope.NONE
    asked: float | None = None


class Patience:
    """The retries of one call. `budget` is the time in seconds to go on asking, counted from the first failure."""

    def __init__(self, budget: float) -> None:
        self.tries = 0
        self.paused = 0.0
        self._budget = budget
        self._failures: Counter[Hope] = Counter()
        self._first_failure: float | None = None
        self._failing_since: tuple[float, float] | None = None  # on the clock, and in pauses

    def pause(self, failure: Failure) -> float:
        """How long to pause before asking again; raises the failure's error when asking again is over."""
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        self.tries += 1
        self._failures[failure.hope] += 1
        if self._failures[failure.hope] >= _TRIES.get(failure.hope, math.inf):
            raise self._final(failure, "")
        pause = failure.asked if failure.asked is not None else backoff(self.tries)
        # A caller that does not really sleep has paused all the same.
        spent, budget = max(now - self._first_failure, self.paused), self._budget
        if failure.hope is Hope.FAILING:
            since, paused = self._failing_since = self._failing_since or (now, self.paused)
            failing = max(now - since, self.paused - paused)
            if budget - spent > FAILING_SECONDS - failing:
                spent, budget = failing, FAILING_SECONDS
        else:
            self._failing_since = None
        if spent + pause > budget:
            raise self._final(failure, f"; the next would be {pause:.0f} s away, past the {budget:.0f} s of retries")
        self.paused += pause
        return pause

    def _final(self, failure: Failure, why: str) -> ModelError:
        if self.tries > 1:
            failure.error.args = (f"{failure.error} ({self.tries} tries in {self.paused:.0f} s{why})",)
        elif why:
            failure.error.args = (f"{failure.error} (one try{why})",)
        return failure.error


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """The pause a reply asks for by `Retry-After` (seconds or a date) or `retry-after-ms`; None when it asks none.

    A little is added, so that callers sent away together do not all return at once.
    """
    pause = _number(headers.get("retry-after-ms"), 0.001) or _retry_after(headers)
    return None if pause is None else pause + random.uniform(0, min(1.0, pause / 10))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after")
    seconds = _number(text, 1.0)
    if seconds is not None or text is None:
        return seconds
    until = _date(text)
    if until is None:
        return None
    now = _date(headers.get("date")) or datetime.now(UTC)  # the provider's own clock, when it tells it
    return _number(str((until - now).total_seconds()), 1.0)


def _number(text: str | None, unit: float) -> float | None:
    try:
        value = float(text or "") * unit
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
