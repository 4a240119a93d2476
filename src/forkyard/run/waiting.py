"""Saying that rollouts wait for a model that fails: after a while, and not once for each of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from forkyard.trace import Trace

PATIENCE = 10.0  # seconds of failing of which nothing is said
BETWEEN = 60.0  # seconds before the same is said again
KINDS_KEPT = 100


@dataclass(slots=True)
class _Failing:
    steps: int
    since: float
    tries: Counter[str] = field(default_factory=Counter)  # by who tells: the gateway and who asks it tell both


class Waiting:
    """Hears of every failed request for a model, and notes what a user would otherwise take for a run that hangs."""

    def __init__(self, note: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._note = note
        self._clock = clock
        self._failing: dict[str, _Failing] = {}
        self._said: dict[str, float] = {}

    def failed(self, trace: Trace, why: str, pause: float) -> None:
        """A request of a rollout failed and is tried again, after `pause` seconds if the provider asked for that."""
        now = self._clock()
        failing = self._failing.get(trace.id)
        if failing is None or failing.steps != trace.steps:  # the model has replied in between
            failing = self._failing[trace.id] = _Failing(trace.steps, now)
        head = why.split(": ", 1)[0]  # what follows may quote a number that is another for each request
        failing.tries[head] += 1
        tries = failing.tries[head]
        kind = head.split(" ", 1)[-1]  # without the address
        if now - failing.since + pause < PATIENCE or now - self._said.get(kind, -BETWEEN) < BETWEEN:
            return
        if len(self._said) >= KINDS_KEPT:
            self._said.clear()
        self._said[kind] = now
        tried = f"tried {tries} times in {now - failing.since:.0f} s" if tries > 1 else "tried once"
        asked = f"; it asks to be left alone for {pause:.0f} s" if pause else ""
        self._note(f"waiting for the model: {why} ({tried}{asked})")

    def forget(self, trace: Trace) -> None:
        """A rollout has ended."""
        self._failing.pop(trace.id, None)
