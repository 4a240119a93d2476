"""Harnesses: the programs around the model."""

from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.bash import BashHarness
from forkyard.harness.nop import NopHarness
from forkyard.harness.oracle import OracleHarness
from forkyard.harness.registry import HARNESSES, harness_class, make_harness
from forkyard.harness.scripted import ScriptedHarness
from forkyard.harness.turns import ask, open_conversation

__all__ = [
    "HARNESSES",
    "BashHarness",
    "Harness",
    "ModelContext",
    "NopHarness",
    "OracleHarness",
    "ScriptedHarness",
    "ask",
    "harness_class",
    "make_harness",
    "open_conversation",
]
