"""Tasks: what an agent is asked and how its work is graded; task directories, Python tasks, and sets of them."""

from forkyard.task.config import DecoratedFunctionConfig, RewardFunctionConfig, TaskConfig
from forkyard.task.data import (
    ARTIFACTS_DIR,
    Artifact,
    TaskData,
    TaskResources,
    TaskTimeout,
    VerifierMode,
    WireTaskData,
)
from forkyard.task.directory import (
    DirectoryTask,
    Refused,
    RewardFile,
    Verdict,
    judge_reward,
    load_task,
)
from forkyard.task.hooks import intercept, invoke, metric, reward, stop, tool
from forkyard.task.intercept import Request, Response
from forkyard.task.judges import Ask, Judge, JudgeConfig, judging_by
from forkyard.task.scoring import UNRECORDED
from forkyard.task.select import SelectConfig, TaskMatchConfig
from forkyard.task.source import config_type_of, load_reference, load_taskset
from forkyard.task.state import State
from forkyard.task.task import Task
from forkyard.task.taskset import Taskset, TasksetConfig
from forkyard.task.toolset import AnyToolset, SharedToolsetConfig, ToolServer, Toolset, ToolsetConfig
from forkyard.task.unrecorded import unrecorded

__all__ = [
    "ARTIFACTS_DIR",
    "UNRECORDED",
    "AnyToolset",
    "Artifact",
    "Ask",
    "DecoratedFunctionConfig",
    "DirectoryTask",
    "Judge",
    "JudgeConfig",
    "Refused",
    "Request",
    "Response",
    "RewardFile",
    "RewardFunctionConfig",
    "SelectConfig",
    "SharedToolsetConfig",
    "State",
    "Task",
    "TaskConfig",
    "TaskData",
    "TaskMatchConfig",
    "TaskResources",
    "TaskTimeout",
    "Taskset",
    "TasksetConfig",
    "ToolServer",
    "Toolset",
    "ToolsetConfig",
    "Verdict",
    "VerifierMode",
    "WireTaskData",
    "config_type_of",
    "intercept",
    "invoke",
    "judge_reward",
    "judging_by",
    "load_reference",
    "load_task",
    "load_taskset",
    "metric",
    "reward",
    "stop",
    "tool",
    "unrecorded",
]
