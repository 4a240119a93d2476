"""Where colocated toolsets can run, said before anything starts, and what their sandboxes are given for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forkyard.errors import ConfigError
from forkyard.harness.offering import toolsets_of
from forkyard.sandbox import Feature, Mount, Provider
from forkyard.task import AnyToolset, Task

_NEEDED = frozenset({Feature.MOUNTS, Feature.PROCESSES})


def inside_problems(task: Task[Any, Any, Any], provider: Provider) -> list[str]:
    """Why a task's colocated toolsets cannot run in this provider's sandboxes, one sentence each."""
    try:
        own, shared = toolsets_of(task)
    except Exception:  # noqa: BLE001 - foreign code; whoever asks the harness is told
        return []
    inside = [toolset for toolset in (*own, *shared) if toolset.colocated]
    if not inside:
        return []
    from forkyard.tools.sources import sources_of  # few toolsets are

    what = f"toolset {type(inside[0]).__name__} is colocated, so it runs in the sandbox"
    lacking = ", ".join(sorted(_NEEDED - provider.features))
    problems = []
    if lacking:
        problems.append(
            f"{what}, in this machine's Python: that needs {lacking}, which the provider {provider.name} does not "
            "promise on this machine; play it on one that does, as with -e local, or leave `colocated` out"
        )
    if task.origin.compose is not None:
        problems.append(f"{what}, and one of several containers is not given this machine's Python: leave it out")
    for toolset in inside:
        try:
            sources_of(toolset)
        except ConfigError as err:
            problems += err.problems
    return problems


async def tool_mounts(toolsets: Iterable[AnyToolset]) -> tuple[Mount, ...]:
    """What a sandbox has to have of the host for toolsets to run in it. Raises ConfigError when it cannot be made."""
    if not any(toolset.colocated for toolset in toolsets):
        return ()
    from forkyard.tools.python import python_mount  # few toolsets are

    return (await python_mount(),)
