"""Grading: after the agent, before the record."""

from forkyard.grade.archives import cleaned
from forkyard.grade.artifacts import NOTHING, Collected, collect, double_artifacts, place, restore
from forkyard.grade.blame import program_failure, settle_failure, unheard, unknown
from forkyard.grade.declared import collect_declared
from forkyard.grade.evidence import keep_ungraded
from forkyard.grade.grading import Grading, closed
from forkyard.grade.logs import keep_logs
from forkyard.grade.phase import graded

__all__ = [
    "NOTHING",
    "Collected",
    "Grading",
    "cleaned",
    "closed",
    "collect",
    "collect_declared",
    "double_artifacts",
    "graded",
    "keep_logs",
    "keep_ungraded",
    "place",
    "program_failure",
    "restore",
    "settle_failure",
    "unheard",
    "unknown",
]
