"""Waiting until a sandbox says that it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from forkyard.errors import SandboxError
from forkyard.sandbox import ProgramResult, Sandbox
from forkyard.task.directory.environment import Healthcheck
from forkyard.values import printable, tail

SHOWN = 500


async def wait_until_healthy(runtime: Sandbox, check: Healthcheck, env: Mapping[str, str]) -> None:
    """Return at the first success. Raises SandboxError after `retries` failures in a row past the start period."""
    clock = asyncio.get_running_loop().time
    started = clock()
    failures = 0
    while True:
        starting = clock() - started < check.start_period_sec
        result = await runtime.run(check.command, env, timeout=check.timeout_sec)
        if result.ok:
            return
        failures += not starting
        if failures >= check.retries:
            raise SandboxError(f"the sandbox is not healthy: {_told(check, result)}, {failures} times in a row")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


def _told(check: Healthcheck, result: ProgramResult) -> str:
    how = f"took over {check.timeout_sec:g} s" if result.timed_out else f"exited {result.exit_code}"
    output = printable(tail((result.stdout + result.stderr).strip(), SHOWN))
    return f"{check.command!r} {how} ({output})" if output else f"{check.command!r} {how}"
