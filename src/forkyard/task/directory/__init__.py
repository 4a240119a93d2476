"""Task directories: the format read, checked, and run."""

from forkyard.task.directory.load import DirectoryTaskset, load_task, load_taskset, task_directories
from forkyard.task.directory.reward import Refused, RewardFile, Verdict, judge_reward
from forkyard.task.directory.task import DirectoryTask

__all__ = [
    "DirectoryTask",
    "DirectoryTaskset",
    "Refused",
    "RewardFile",
    "Verdict",
    "judge_reward",
    "load_task",
    "load_taskset",
    "task_directories",
]
