"""What a check of a task found, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Spot:
    """What one rule says of one place; `path` is relative to the task, `line` and `column` count from 1.

    `output` is what commands printed of it, its end, as text of several lines.
    """

    path: str
    message: str
    line: int | None = None
    column: int | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's spot in a task that was named on the command line; `path` begins as that task was named."""

    rule: str
    severity: Severity
    path: str
    line: int | None
    column: int | None
    message: str
    output: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is more than a note."""
        return self.severity != "note"

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        return f"{place}: {self.severity} {self.rule}: {self.message}"
