"""Runs: a plan, its slots at work side by side, and one line for each."""

from forkyard.run.live import Live
from forkyard.run.plan import Plan, PlannedTask, is_run, new_run_name, plan_of, read_plan
from forkyard.run.playing import Outcome
from forkyard.run.prepare import resolved
from forkyard.run.progress import Headline, Lines, Progress
from forkyard.run.regrade import Regrade, check_regrade, regrade
from forkyard.run.replay import Replay, replay
from forkyard.run.run import check, resume, start
from forkyard.run.validate import Check, Row, validate

__all__ = [
    "Check",
    "Headline",
    "Lines",
    "Live",
    "Outcome",
    "Plan",
    "PlannedTask",
    "Progress",
    "Regrade",
    "Replay",
    "Row",
    "check",
    "check_regrade",
    "is_run",
    "new_run_name",
    "plan_of",
    "read_plan",
    "regrade",
    "replay",
    "resolved",
    "resume",
    "start",
    "validate",
]
