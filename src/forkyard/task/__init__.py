"""Tasks: what an agent is asked and how its work is graded; task directories, Python tasks, and sets of them."""

from forkyard.task.data import ARTIFACTS_DIR, Artifact, TaskData, TaskResources, TaskTimeout, VerifierMode
from forkyard.task.directory import (
    DirectoryTask,
    Refused,
    RewardFile,
    Verdict,
    judge_reward,
    load_task,
)
from forkyard.task.hooks import invoke, metric, reward
from forkyard.task.source import load_taskset
from forkyard.task.task import Task
from forkyard.task.taskset import Taskset

__all__ = [
    "ARTIFACTS_DIR",
    "Artifact",
    "DirectoryTask",
    "Refused",
    "RewardFile",
    "Task",
    "TaskData",
    "TaskResources",
    "TaskTimeout",
    "Taskset",
    "Verdict",
    "VerifierMode",
    "invoke",
    "judge_reward",
    "load_task",
    "load_taskset",
    "metric",
    "reward",
]
