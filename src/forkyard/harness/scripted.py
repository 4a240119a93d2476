"""The harness `scripted`: the bash harness, driven by a script instead of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from forkyard.errors import ConfigError
from forkyard.harness.base import ModelContext
from forkyard.harness.bash import BashHarness
from forkyard.model import ScriptedModel, load_scripts, script_for
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Trace


class ScriptedHarness(BashHarness):
    """Plays the script a scripts file holds for the rollout's task and sample (see `forkyard.model.scripted`).

    Raises ConfigError, when it is made, for a file that is no scripts file.
    """

    name: ClassVar[str] = "scripted"
    needs_model: ClassVar[bool] = False

    def __init__(self, *, script: Path, max_turns: int = 50, output_chars: int = 2000, command_timeout: float = 60.0):
        super().__init__(
            max_turns=max_turns, output_chars=output_chars, command_timeout=command_timeout, tool_mode="native"
        )
        self.scripts = load_scripts(script)

    def problems(self, task: Task) -> list[str]:
        """The scripts file may lack the task."""
        try:
            script_for(self.scripts, task.name, 0)
        except ConfigError as err:
            return list(err.problems)
        return super().problems(task)

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until the script is done. Raises ConfigError when it has none for the task."""
        model = ScriptedModel(script_for(self.scripts, trace.task, trace.slot.sample), trace.steps)
        trace.model = trace.model or model.name
        await super().launch(replace(ctx, model=model), task, trace, runtime)
