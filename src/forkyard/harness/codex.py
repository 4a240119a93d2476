"""The harness `codex`: OpenAI's Codex CLI inside the sandbox, speaking the responses dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from forkyard.harness.base import Harness, ModelContext
from forkyard.harness.equipment import Equipment, check_starts, check_version, checked, make_state, place_of, state_of
from forkyard.harness.narration import Narration
from forkyard.harness.offering import TOOL_SECONDS, CallsTools
from forkyard.harness.program import Program, endpoint_of, instruction, run_program
from forkyard.sandbox import Sandbox
from forkyard.task import Task, ToolServer
from forkyard.trace import Trace

VERSION = "0.171.0"
_NAME = "codex"
_PROGRAM = f"{place_of(_NAME)}/codex"
_KEY = "FORKYARD_MODEL_KEY"


class CodexHarness(Harness):
    """Runs `codex exec` on the task's instruction. `version` is that of the npm package @openai/codex."""

    name: ClassVar[str] = _NAME
    needs_endpoint: ClassVar[bool] = True
    dialect: ClassVar[str] = "responses"
    converses: ClassVar[bool] = False
    calls_tools: ClassVar[CallsTools] = "mcp"

    def __init__(self, *, version: str = VERSION) -> None:
        self.version = check_version(version)

    def equipment(self) -> Equipment:
        """The program and its state's directory."""
        return Equipment(f"codex {self.version}", partial(_install, self.version))

    async def launch(self, ctx: ModelContext, task: Task, trace: Trace, runtime: Sandbox) -> None:
        """Act until done."""
        at = endpoint_of(self.name, ctx)
        told = instruction(self.name, task, trace)
        provider = {"name": "forkyard", "base_url": f"{at.base_url}/v1", "env_key": _KEY, "wire_api": "responses"}
        settings = {
            "model_provider": '"forkyard"',
            "model_providers.forkyard": _toml_table(provider),
            "analytics.enabled": "false",
            "check_for_update_on_startup": "false",
            "features.apps": "false",
            "features.plugins": "false",  # they are looked up at GitHub
            **dict(_servers(ctx.tools)),
        }
        argv = [_PROGRAM, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        for key, value in settings.items():
            argv += ["-c", f"{key}={value}"]
        env = {"CODEX_HOME": state_of(_NAME), _KEY: at.key}
        program = Program(self.name, [*argv, "-m", at.model, "-"], told, env)
        await run_program(program, CodexNarrator(trace), task, trace, runtime)


async def _install(version: str, sandbox: Sandbox) -> None:
    from forkyard.harness.npm import npm_machine, push_package  # the client of registries, for those who need it

    machine = npm_machine(_NAME)
    await make_state(sandbox, _NAME)
    # The program for one machine is published as a version of the package itself. It is linked statically.
    await push_package(sandbox, "@openai/codex", f"{version}-linux-{machine}", place_of(_NAME))
    link = f"ln -s {place_of(_NAME)}/package/vendor/*/bin/codex {_PROGRAM}"
    await checked(sandbox, ["sh", "-c", link], f"codex {version} is not packed as it was")
    await check_starts(sandbox, [_PROGRAM, "--version"], f"codex {version} does not start in this image")


def _servers(tools: Mapping[str, ToolServer]) -> Iterator[tuple[str, str]]:
    """The settings for servers of tools. It speaks streamable HTTP to every URL."""
    for name, server in tools.items():
        at = f"mcp_servers.{name}"
        if server.transport == "stdio":
            yield f"{at}.command", json.dumps(server.command)
            yield f"{at}.args", json.dumps(list(server.args))
        else:
            yield f"{at}.url", json.dumps(server.url)
            if server.headers:
                yield f"{at}.http_headers", _toml_table(server.headers)
        yield f"{at}.tool_timeout_sec", f"{TOOL_SECONDS}"


def _toml_table(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()) + "}"


class CodexNarrator:
    """Understands the events of `codex exec --json`; its items stand for tool calls with their results."""

    def __init__(self, trace: Trace) -> None:
        self.finished = False
        self.failed: str | None = None
        self._narration = Narration(trace)

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        kind = event["type"]
        if kind == "item.completed":
            self._item(event["item"])
        elif kind == "turn.completed":
            self.finished = True
        elif kind == "turn.failed":
            self.finished = True
            self.failed = str(event["error"]["message"])

    def _item(self, item: Mapping[str, Any]) -> None:
        kind, narration = item["type"], self._narration
        if kind == "reasoning":
            narration.think(str(item["text"]))
        elif kind == "agent_message":
            narration.say(str(item["text"]))
        elif kind == "command_execution":
            self._tool(item, "shell", {"command": item["command"]}, _command_result(item))
        elif kind == "mcp_tool_call":
            result = item.get("error") or item.get("result")
            self._tool(item, f"{item['server']}.{item['tool']}", item.get("arguments"), json.dumps(result))
        elif kind in _OTHER_TOOLS:
            arguments = {key: value for key, value in item.items() if key not in ("id", "type", "status")}
            self._tool(item, kind, arguments, str(item.get("status", "completed")))

    def _tool(self, item: Mapping[str, Any], name: str, arguments: Any, result: str) -> None:
        self._narration.call(str(item["id"]), name, arguments)
        self._narration.answer(str(item["id"]), result)


_OTHER_TOOLS = frozenset({"file_change", "web_search", "todo_list", "collab_tool_call"})


def _command_result(item: Mapping[str, Any]) -> str:
    return f"exit {item.get('exit_code')}\n{item.get('aggregated_output') or ''}"
