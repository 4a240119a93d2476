"""Harnesses by name: ours, those that installed packages offer, or any class given as "module:Class"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from forkyard.harness.base import Harness
from forkyard.harness.bash import BashHarness
from forkyard.harness.claude_code import ClaudeCodeHarness
from forkyard.harness.codex import CodexHarness
from forkyard.harness.mini_swe_agent import MiniSweAgentHarness
from forkyard.harness.nop import NopHarness
from forkyard.harness.null import NullHarness
from forkyard.harness.offering import CallsTools
from forkyard.harness.oracle import OracleHarness
from forkyard.harness.scripted import ScriptedHarness
from forkyard.plugins import Kind, load_class, make

HARNESSES: Mapping[str, type[Harness]] = {
    harness.name: harness
    for harness in (
        BashHarness,
        ClaudeCodeHarness,
        CodexHarness,
        MiniSweAgentHarness,
        NopHarness,
        NullHarness,
        OracleHarness,
        ScriptedHarness,
    )
}
DEFAULT_HARNESS = BashHarness.name
_KIND = Kind("harness", "forkyard.harnesses", HARNESSES)


def make_harness(name: str, options: Mapping[str, str] | None = None) -> Harness:
    """The harness of that name or at "module:Class", made with `options`, the arguments of its construction.

    Raises ConfigError, before anything runs, for an unknown name, an option the class does not take, a value that is
    not of the option's type, and a missing option.
    """
    return cast(Harness, make(_KIND, name, harness_class(name), options or {}))


def tool_callers(*ways: CallsTools) -> str:
    """The names of ours that can call a task's tools, in one of these ways if any is said: "bash, codex or null"."""
    found = [name for name, each in HARNESSES.items() if each.calls_tools in (ways or get_args(CallsTools))]
    return f"{', '.join(found[:-1])} or {found[-1]}"


def harness_class(name: str) -> type[Harness]:
    """The class behind a name, without making one. Raises ConfigError."""
    return load_class(_KIND, name, Harness, "forkyard.harness.Harness")
