"""Harnesses: the programs around the model."""

from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.bash import BashHarness
from forkyard.harness.claude_code import ClaudeCodeHarness
from forkyard.harness.codex import CodexHarness
from forkyard.harness.equipment import Equipment
from forkyard.harness.mini_swe_agent import MiniSweAgentHarness
from forkyard.harness.nop import NopHarness
from forkyard.harness.null import NullHarness
from forkyard.harness.oracle import OracleHarness
from forkyard.harness.registry import DEFAULT_HARNESS, HARNESSES, harness_class, make_harness, tool_callers
from forkyard.harness.scripted import ScriptedHarness
from forkyard.harness.toolbox import Server, Toolbox
from forkyard.harness.turns import ask, open_conversation

__all__ = [
    "DEFAULT_HARNESS",
    "HARNESSES",
    "BashHarness",
    "ClaudeCodeHarness",
    "CodexHarness",
    "Equipment",
    "Harness",
    "MiniSweAgentHarness",
    "ModelContext",
    "NopHarness",
    "NullHarness",
    "OracleHarness",
    "ScriptedHarness",
    "Server",
    "Toolbox",
    "ask",
    "harness_class",
    "make_harness",
    "open_conversation",
    "tool_callers",
]
