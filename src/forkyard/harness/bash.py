"""The harness `bash`: one tool that runs a shell command, a history that only grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from forkyard.errors import ContextLengthError, HarnessError
from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.calls import BASH_TOOL, FENCED_PROMPT, CallError, checked, command_of, last_block
from forkyard.harness.offering import CallsTools
from forkyard.harness.shell import Shell
from forkyard.harness.toolbox import Own, Toolbox
from forkyard.harness.turns import ask, open_conversation
from forkyard.model import Model, Reply, ToolsRefusedError
from forkyard.sandbox import Sandbox
from forkyard.task import Task
from forkyard.trace import Message, ToolCall, Trace, limit_reached, messages
from forkyard.values import strict_json

ToolMode = Literal["auto", "native", "fenced"]


class BashHarness(Harness):
    """Lets a model work in a shell until it replies without a command.

    `output_chars` is what the model sees of a command's output, from its end; `command_timeout` is in seconds.
    `max_turns` holds where the agent's limits set none. `tool_mode` "native" uses the provider's tool calls,
    "fenced" asks for ```bash blocks in plain text, which small models do better, and "auto" begins native and
    changes over when the provider takes no tools. The tools of a task are called natively only.
    """

    name: ClassVar[str] = "bash"
    calls_tools: ClassVar[CallsTools] = "here"

    def __init__(
        self,
        *,
        max_turns: int = 50,
        output_chars: int = 2000,
        command_timeout: float = 60.0,
        tool_mode: ToolMode = "auto",
    ) -> None:
        if max_turns < 1 or output_chars < 1 or not command_timeout > 0:
            raise ValueError("max_turns, output_chars and command_timeout must be greater than 0")
        self.max_turns = max_turns
        self.output_chars = output_chars
        self.command_timeout = command_timeout
        self.tool_mode = tool_mode

    def problems(self, task: Task) -> list[str]:
        """A task's tools may not be had, and in fences none can."""
        problems = super().problems(task)
        if self.tool_mode == "fenced" and not problems and (task.shared_toolsets or task.toolsets(task.config)):
            problems.append('the task offers tools, which nothing can call with tool_mode "fenced": leave that out')
        return problems

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
        if ctx.model is None:
            raise HarnessError(f"the harness {self.name!r} needs a model, and the run gave it none")
        open_conversation(task, trace)
        limits = ctx.limits
        if limits.max_turns is None:
            limits = replace(limits, max_turns=self.max_turns)
        shell = Shell(
            runtime,
            task.runtime_env(),
            cwd=task.data.workdir,
            user=task.data.agent_user,
            timeout=self.command_timeout,
            shown=self.output_chars,
            resources=task.data.resources,
        )
        talk = _Talk(ctx.model, ctx, trace, shell, ctx.toolbox or Toolbox(task, trace), self.tool_mode)
        while (reached := limit_reached(trace, limits)) is None:
            try:
                reply = await talk.ask()
            except ContextLengthError as err:
                trace.info["context_length"] = str(err)
                trace.stop("context_length")
                return
            if not await talk.act(reply.message):
                trace.stop("agent_completed")
                return
        trace.stop(reached)


class _Talk:
    """One rollout's conversation: which way commands travel is settled by the first reply."""

    def __init__(
        self, model: Model, ctx: ModelContext, trace: Trace, shell: Shell, toolbox: Toolbox, mode: ToolMode
    ) -> None:
        self._model = model
        self._sampling = ctx.sampling
        self._trace = trace
        self._shell = shell
        self._toolbox = toolbox
        self._tools = (BASH_TOOL, *toolbox.specs)
        called = any(message.get("tool_calls") for message in trace.messages)
        self._may_change = mode == "auto" and not called and not toolbox.servers
        self._fenced = False
        if mode == "fenced" or trace.info.get("tool_mode") == "fenced":
            self._use_fences()

    def _use_fences(self) -> None:
        self._fenced = True
        if self._trace.info.get("tool_mode") != "fenced":
            self._trace.info["tool_mode"] = "fenced"
            _explain_fences(self._trace.messages)

    async def ask(self) -> Reply:
        tools = () if self._fenced else self._tools
        try:
            reply = await ask(self._model, self._trace, tools, self._sampling)
        except ToolsRefusedError:
            if not self._may_change:
                raise
            self._use_fences()
            reply = await ask(self._model, self._trace, (), self._sampling)
        self._may_change = False
        return reply

    async def act(self, message: Message) -> bool:
        """Run what the message asks for, each result on the record before the next; False when it asks nothing."""
        calls = message.get("tool_calls") or []
        own: Own = {"bash": self._run_call}
        for call in calls:
            self._trace.messages.append(await self._toolbox.answer(call, own, self._tools))
        block = last_block(str(message.get("content") or "")) if self._fenced and not calls else None
        if block is not None:
            self._trace.messages.append(messages.user(await self._run_block(block)))
        return bool(calls) or block is not None

    async def _run_call(self, call: Mapping[str, Any]) -> str:
        try:
            return await self._shell.run(command_of(call))
        except CallError as err:
            return f"error: {err}"

    async def _run_block(self, block: str) -> str:
        call = ToolCall(f"block_{len(self._trace.messages)}", "bash", strict_json({"command": block}))
        said = await self._toolbox.gate(call, self._trace.messages, ())
        if said is not None:
            return said
        try:
            return await self._shell.run(checked(block))
        except CallError as err:
            return f"error: {err}"


def _explain_fences(talk: list[Message]) -> None:
    if talk and talk[0]["role"] == "system" and isinstance(talk[0]["content"], str):
        talk[0] = messages.system(f"{talk[0]['content']}\n\n{FENCED_PROMPT}")
    else:
        talk.insert(0, messages.system(FENCED_PROMPT))
