"""Mode `shared`: the verifier works in the agent's sandbox, apart from what the agent left running.

What runs there may be what is graded, so it lives on, and the verifier can reach it. The other way round it is to have
no hold on the verifier: on its tests, its processes, or the reward.
"""

from __future__ import annotations

from forkyard.sandbox import Sandbox, StandsApart
from forkyard.task import Task
from forkyard.trace import Trace


async def apart_from_agent(task: Task, trace: Trace, sandbox: Sandbox) -> Sandbox:
    """Where the verifier is to work: a sandbox over `sandbox` where the agent left something running, or itself.

    On the record are `left_running`, and then `apart`, which says whether the provider could keep them so. A task that
    names no `hidden_places` is not asked. Raises SandboxError.
    """
    if not task.hidden_places:
        return sandbox
    trace.verifier["left_running"] = not await sandbox.is_quiet()
    if not trace.verifier["left_running"]:
        return sandbox
    apart = await sandbox.apart(task.hidden_places) if isinstance(sandbox, StandsApart) else None
    trace.verifier["apart"] = apart is not None
    return apart or sandbox
