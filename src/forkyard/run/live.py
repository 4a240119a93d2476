"""The live view of a run on a terminal: what is running now, under the lines of what has finished."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from forkyard.run.progress import Headline, Outcomes, Progress, beside, end_line, player
from forkyard.trace import Status, Trace
from forkyard.values import decimal, one_line, printable

REFRESHES = 4  # a second
ROWS_SHOWN = 16
_HEADER_LINES = 4


@dataclass(slots=True)
class _Row:
    """One rollout at work. The trace is the live one: its steps grow while it is shown."""

    trace: Trace
    phase: str
    since: float


class Live(Progress):
    """Finished rollouts as lines that scroll away, and below them a view that is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._outcomes = Outcomes()
        self._rewards = 0.0
        self._rewarded = 0
        self._finished: set[str] = set()  # episodes
        self._errors = 0
        self._began = time.monotonic()
        self._headline: Headline | None = None
        self._screen: Screen | None = None

    def begin(self, headline: Headline) -> None:
        """Start drawing."""
        self._headline = headline
        self._began = time.monotonic()
        self._screen = Screen(
            console=self._console, get_renderable=self._view, refresh_per_second=REFRESHES, transient=True
        )
        self._screen.start()

    def note(self, text: str) -> None:
        """A line above the view."""
        self._say(f"note: {printable(text)}")

    def phase(self, trace: Trace, phase: str) -> None:
        """A row comes, changes or goes."""
        if phase == "done":
            self._rows.pop(trace.id, None)
        else:
            self._rows[trace.id] = _Row(trace, phase, time.monotonic())

    def finished(self, record: Mapping[str, Any]) -> None:
        """A line above the view, and new totals in it."""
        self._finished.add(record["episode"] or record["id"])
        self._errors += record["status"] != Status.SCORED and not beside(record)
        if record["reward"] is not None:
            self._rewards += record["reward"]
            self._rewarded += 1
        self._say(self._outcomes.line(record))

    def end(self, played: int, seconds: float, traces: Path) -> None:
        """The last line."""
        self._say(end_line(played, seconds, traces))

    def abandon(self) -> None:
        """Stop drawing; the view is taken away and the cursor given back."""
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _view(self) -> RenderableType:
        # Called from the drawing thread: it looks at copies.
        rows = sorted(list(self._rows.values()), key=lambda row: row.since)  # noqa: C414
        shown = rows[: max(1, min(ROWS_SHOWN, self._console.height - _HEADER_LINES))]
        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for row in shown:
            steps = f"{row.trace.steps} steps" if row.trace.steps else ""
            who = player(row.trace.task, row.trace.slot.sample, row.trace.slot.env, row.trace.agent)
            phase = "waiting for the model" if row.trace.model_failing else row.phase
            table.add_row(Text(who, no_wrap=True, overflow="ellipsis"), phase, f"{now - row.since:.0f}s", steps)
        more = [Text(f"and {len(rows) - len(shown)} more", style="dim")] if len(rows) > len(shown) else []
        return Group(self._header(now), table, *more)

    def _header(self, now: float) -> Text:
        headline = self._headline
        if headline is None:
            return Text()
        mean = decimal(self._rewards / self._rewarded) if self._rewarded else "-"
        who = headline.harness if headline.model is None else f"{headline.harness} {headline.model}"
        return Text(
            f"{one_line(headline.run)}  {one_line(who)}  "
            f"{headline.recorded + len(self._finished)}/{headline.planned} done  {len(self._rows)} running  "
            f"mean reward {mean}  {self._errors} not scored  {now - self._began:.0f}s",
            style="bold",
        )
