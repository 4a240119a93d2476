"""The harness `nop`: does nothing. A task it can solve is broken."""

from __future__ import annotations

from typing import ClassVar

from forkyard.harness.base import Harness, ModelContext
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Trace


class NopHarness(Harness):
    """Leaves the sandbox as the task made it."""

    name: ClassVar[str] = "nop"
    needs_model: ClassVar[bool] = False
    converses: ClassVar[bool] = False

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Stop at once."""
        trace.stop("agent_completed")
