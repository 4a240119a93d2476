"""The rules by name. Adding one is writing one function under `@rule`: its name and docstring are the rule's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forkyard.task.check.finding import Finding, Severity, Spot
from forkyard.task.check.subject import Subject

Look = Callable[[Subject], Iterable[Spot]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong with a task; `look` is None for what only playing the task shows."""

    name: str
    severity: Severity
    about: str
    look: Look | None = None

    def finding(self, place: str, spot: Spot) -> Finding:
        """What was found in the task at `place`."""
        path = f"{place.rstrip('/')}/{spot.path}" if spot.path else place
        return Finding(self.name, self.severity, path, spot.line, spot.column, spot.message, spot.output)


RULES: dict[str, Rule] = {}


def rule(severity: Severity) -> Callable[[Look], Look]:
    """Register a function that looks at a task; `unpinned_image` is the rule `unpinned-image`."""

    def register(look: Look) -> Look:
        name = look.__name__.replace("_", "-")
        RULES[name] = Rule(name, severity, (look.__doc__ or "").strip(), look)
        return look

    return register


def played(name: str, severity: Severity, about: str) -> Rule:
    """Register a rule that playing the task decides."""
    RULES[name] = found = Rule(name, severity, about)
    return found
