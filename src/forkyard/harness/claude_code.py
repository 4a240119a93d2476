"""The harness `claude-code`: Anthropic's Claude Code inside the sandbox, speaking the messages dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.equipment import Equipment, check_starts, check_version, checked, make_state, place_of, state_of
from forkyard.harness.narration import Narration, text_in
from forkyard.harness.offering import TOOL_SECONDS, CallsTools
from forkyard.harness.program import Program, endpoint_of, instruction, run_program
from forkyard.sandbox import Sandbox
from forkyard.task import Task, ToolServer
from forkyard.trace import Trace, messages

VERSION = "2.1.332"
_NAME = "claude-code"
_PROGRAM = f"{place_of(_NAME)}/package/claude"
_QUIET = {
    "IS_SANDBOX": "1",  # it lets root skip permissions only where it is told so
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


_WITH_TOOLS = {
    "MCP_TOOL_TIMEOUT": f"{TOOL_SECONDS * 1000:.0f}",
    "ENABLE_TOOL_SEARCH": "false",  # the model is told of every tool, and not of a way to look for them
}


class ClaudeCodeHarness(Harness):
    """Runs `claude -p` on the task's instruction. `version` is that of the npm package @anthropic-ai/claude-code."""

    name: ClassVar[str] = _NAME
    needs_endpoint: ClassVar[bool] = True
    dialect: ClassVar[str] = "messages"
    converses: ClassVar[bool] = False
    calls_tools: ClassVar[CallsTools] = "mcp"

    def __init__(self, *, version: str = VERSION) -> None:
        self.version = check_version(version)

    def equipment(self) -> Equipment:
        """The program and its state's directory."""
        return Equipment(f"claude-code {self.version}", partial(_install, self.version))

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
        at = endpoint_of(self.name, ctx)
        told = instruction(self.name, task, trace)
        if told.startswith("/"):
            told = f"\n{told}"  # or it would be taken for a command to Claude Code itself
        argv = [_PROGRAM, "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
        if ctx.tools:
            argv += ["--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": _servers(ctx.tools)})]
        env = {
            **_QUIET,
            **(_WITH_TOOLS if ctx.tools else {}),
            "CLAUDE_CONFIG_DIR": state_of(_NAME),
            "ANTHROPIC_BASE_URL": at.base_url,
            "ANTHROPIC_API_KEY": at.key,
            "ANTHROPIC_MODEL": at.model,
            # What it would ask of smaller models goes to the same one: the rollout has no other.
            "ANTHROPIC_SMALL_FAST_MODEL": at.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": at.model,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": at.model,
            "ANTHROPIC_DEFAULT_OPUS_MODEL": at.model,
        }
        program = Program(self.name, argv, told, env)
        await run_program(program, ClaudeNarrator(trace), task, trace, runtime)


def _servers(tools: Mapping[str, ToolServer]) -> dict[str, dict[str, Any]]:
    """The servers of tools as its configuration has them."""
    kinds = {"streamable-http": "http", "sse": "sse"}
    return {
        name: {"type": "stdio", "command": server.command, "args": list(server.args)}
        if server.transport == "stdio"
        else {"type": kinds[server.transport], "url": server.url, "headers": dict(server.headers)}
        for name, server in tools.items()
    }


async def _install(version: str, sandbox: Sandbox) -> None:
    from forkyard.harness.npm import npm_machine, push_package  # the client of registries, for those who need it

    machine = npm_machine(_NAME)
    await make_state(sandbox, _NAME)
    libc = await _libc(sandbox)
    package = f"@anthropic-ai/claude-code-linux-{machine}{'-musl' if libc == 'musl' else ''}"
    await push_package(sandbox, package, version, place_of(_NAME))
    missing = "" if libc else ": it is linked to glibc or musl, and the image has the loader of neither"
    await check_starts(sandbox, [_PROGRAM, "--version"], f"claude-code {version} does not start in this image{missing}")


async def _libc(sandbox: Sandbox) -> str:
    """Which C library the image's programs are linked to: "glibc", "musl", or "" for none that is known."""
    look = (
        "for f in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*; do [ -e $f ] && echo glibc && exit; done; "
        "for f in /lib/ld-musl-*.so.1; do [ -e $f ] && echo musl && exit; done; :"
    )
    return (await checked(sandbox, ["sh", "-c", look], "claude-code needs a shell")).strip()


class ClaudeNarrator:
    """Understands `--output-format stream-json`; what its sub-agents say among themselves is left out."""

    def __init__(self, trace: Trace) -> None:
        self.finished = False
        self.failed: str | None = None
        self._trace = trace
        self._narration = Narration(trace)
        self._reply: object = None

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        kind = event["type"]
        if event.get("parent_tool_use_id"):
            return
        if kind == "assistant":
            self._assistant(event["message"])
        elif kind == "user":
            self._user(event["message"]["content"])
        elif kind == "result":
            self.finished = True
            if event.get("is_error"):
                self.failed = text_in(event.get("result")) or str(event.get("subtype"))

    def _assistant(self, message: Mapping[str, Any]) -> None:
        if message.get("id") != self._reply:  # it tells one reply block by block
            self._narration.close()
            self._reply = message.get("id")
        for block in message["content"]:
            kind = block["type"]
            if kind == "text":
                self._narration.say(str(block["text"]))
            elif kind == "thinking":
                self._narration.think(str(block["thinking"]))
            elif kind == "tool_use":
                self._narration.call(str(block["id"]), str(block["name"]), block["input"])

    def _user(self, content: Any) -> None:
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block["type"] == "tool_result":
                self._narration.answer(str(block["tool_use_id"]), text_in(block.get("content")))
            elif block["type"] == "text":
                self._narration.close()
                self._trace.messages.append(messages.user(str(block["text"])))
