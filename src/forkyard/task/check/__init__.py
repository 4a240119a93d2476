"""Checks of task directories: rules over what lies in them, and the names of those that only playing a task decides."""

from forkyard.task.check import (  # noqa: F401 - each registers its rules
    compose_rules,
    file_rules,
    format_rules,
    image_rules,
    package_rules,
    played_rules,
    reward_rules,
    verifier_rules,
)
from forkyard.task.check.check import check_directory, chosen_rules, named_directories
from forkyard.task.check.finding import Finding, Severity, Spot
from forkyard.task.check.registry import RULES, Rule

__all__ = ["RULES", "Finding", "Rule", "Severity", "Spot", "check_directory", "chosen_rules", "named_directories"]
