"""Reports: statistics over finished rollouts, as values, text and JSON."""

from forkyard.report import stats
from forkyard.report.compare import Comparison, compare
from forkyard.report.compared import comparison_json, comparison_text
from forkyard.report.outcome import Outcome, Totals
from forkyard.report.stats import Interval
from forkyard.report.summary import Group, Report, Row, report, summarize
from forkyard.report.table import aligned, shown, to_json, to_text

__all__ = [
    "Comparison",
    "Group",
    "Interval",
    "Outcome",
    "Report",
    "Row",
    "Totals",
    "aligned",
    "compare",
    "comparison_json",
    "comparison_text",
    "report",
    "shown",
    "stats",
    "summarize",
    "to_json",
    "to_text",
]
