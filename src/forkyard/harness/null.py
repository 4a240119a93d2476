"""The harness `null`: a conversation, with the task's tools and without a shell."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from forkyard.errors import ContextLengthError, HarnessError
from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.offering import CallsTools
from forkyard.harness.toolbox import Toolbox
from forkyard.harness.turns import ask, open_conversation
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Trace, limit_reached

MAX_TURNS = 50
"""Of an agent with tools, where its limits set none."""


class NullHarness(Harness):
    """Asks the model for one reply, or until one calls no tool when the task has some: for questions, and for talk."""

    name: ClassVar[str] = "null"
    executes_code: ClassVar[bool] = False
    calls_tools: ClassVar[CallsTools] = "here"

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Reply."""
        if ctx.model is None:
            raise HarnessError(f"the harness {self.name!r} needs a model, and the run gave it none")
        open_conversation(task, trace)
        toolbox = ctx.toolbox or Toolbox(task, trace)
        tools, limits = toolbox.specs, ctx.limits
        if tools and limits.max_turns is None:
            limits = replace(limits, max_turns=MAX_TURNS)
        while (reached := limit_reached(trace, limits)) is None:
            try:
                reply = await ask(ctx.model, trace, tools, ctx.sampling)
            except ContextLengthError as err:
                trace.info["context_length"] = str(err)
                trace.stop("context_length")
                return
            calls = reply.message.get("tool_calls") if tools else None
            for call in calls or ():
                trace.messages.append(await toolbox.answer(call, {}, tools))
            if not calls:
                break
        trace.stop(reached or "agent_completed")
