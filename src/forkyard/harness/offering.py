"""Whether a harness can offer its agent what a task's tools are; said before anything starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

from forkyard.task import AnyToolset, Task

CallsTools = Literal["here", "mcp"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what programs take as a server's name in their configuration
UNNAMED = "tools"
"""What a server is called that has no name of its own, of toolsets whose TOOL_PREFIX is None."""


TOOL_SECONDS = 600.0
"""How long programs in the sandbox wait for a tool; its agent's own deadline holds besides."""


def toolsets_of(task: Task[Any, Any, Any]) -> tuple[Sequence[AnyToolset], Sequence[AnyToolset]]:
    """The toolsets that a rollout of the task has for itself, made anew each time, and those that it shares."""
    return task.toolsets(task.config), task.shared_toolsets


def tool_problems(task: Task[Any, Any, Any], harness: str, how: CallsTools | None) -> list[str]:
    """Why the harness of that name cannot offer a task's tools, one sentence each."""
    from forkyard.harness.registry import tool_callers  # which knows them all, and each of them stands on this

    where = type(task).__name__
    try:
        own, shared = toolsets_of(task)
    except Exception as err:  # noqa: BLE001 - foreign code: whatever it raises is why there are no tools
        return [f"{where}.toolsets failed: {type(err).__name__}: {err}"]
    toolsets = (*own, *shared)
    named = [*(toolset.server_name or UNNAMED for toolset in toolsets), *task.tool_servers]
    if not named:
        return []
    offered = f"the tools that the task offers ({', '.join(dict.fromkeys(named))})"
    if how is None:
        return [f"the harness {harness} cannot call {offered}: play it with {tool_callers()}"]
    problems = []
    if how == "here" and task.tool_servers:
        problems.append(
            f"the harness {harness} works outside the sandbox, and the servers {', '.join(task.tool_servers)} are "
            f"reached inside only: play it with {tool_callers('mcp')}"
        )
    if find_spec("mcp") is None and (how == "mcp" or any(toolset.config.url for toolset in toolsets)):
        problems.append(f"{offered} go by MCP, and its package is not installed: pip install 'forkyard[mcp]'")
    return problems + _of_names(where, toolsets, named)


def _of_names(where: str, toolsets: Sequence[AnyToolset], servers: Sequence[str]) -> list[str]:
    problems = [
        f"{where} has a server of tools called {name!r}: a name is letters, digits, _ and -"
        for name in servers
        if not _NAME.fullmatch(name)
    ]
    tools = Counter(spec["function"]["name"] for toolset in toolsets for spec in toolset.specs())
    for what, names in (("servers of tools", Counter(servers)), ("tools", tools)):
        problems += [f"{where} has two {what} called {name!r}: give one another" for name, n in names.items() if n > 1]
    return problems
