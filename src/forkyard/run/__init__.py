"""Runs: a plan, its slots at work side by side, and one line for each."""

from forkyard.run.directory import remove
from forkyard.run.live import Live
from forkyard.run.plan import KEY_VARIABLE, Plan, PlannedTask, check_name, is_run, new_run_name, plan_of, read_plan
from forkyard.run.prepare import resolved
from forkyard.run.progress import Headline, Lines, Progress
from forkyard.run.regrade import Regrade, regrade
from forkyard.run.replay import Replay, replay
from forkyard.run.run import Outcome, check, resume, start
from forkyard.run.validate import Check, Row, validate

__all__ = [
    "KEY_VARIABLE",
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
    "check_name",
    "is_run",
    "new_run_name",
    "plan_of",
    "read_plan",
    "regrade",
    "remove",
    "replay",
    "resolved",
    "resume",
    "start",
    "validate",
]
