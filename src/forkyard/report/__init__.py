"""Reports: statistics over finished rollouts, as values, text and JSON."""

from forkyard.report import stats
from forkyard.report.compare import Comparison, compare
from forkyard.report.compared import comparison_json, comparison_text
from forkyard.report.files import files_of
from forkyard.report.outcome import Outcome, Totals
from forkyard.report.rollouts import Choice, chosen, named, rollouts_text
from forkyard.report.stats import Interval
from forkyard.report.summary import Group, Report, Row, report, summarize
from forkyard.report.table import aligned, shown, to_json, to_text
from forkyard.report.transcript import rollout_text

__all__ = [
    "Choice",
    "Comparison",
    "Group",
    "Interval",
    "Outcome",
    "Report",
    "Row",
    "Totals",
    "aligned",
    "chosen",
    "compare",
    "comparison_json",
    "comparison_text",
    "files_of",
    "named",
    "report",
    "rollout_text",
    "rollouts_text",
    "shown",
    "stats",
    "summarize",
    "to_json",
    "to_text",
]
