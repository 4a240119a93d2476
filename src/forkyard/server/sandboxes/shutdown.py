"""The end of a sandbox's processes before its disk is sealed: they are asked to end, and given a while for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from forkyard.errors import SandboxError
from forkyard.sandbox import Sandbox

GRACE = 5.0
_FIRST_LOOK, _LATER_LOOKS = 0.01, 0.1
_ASK = ["/bin/sh", "-c", "kill -TERM -1"]  # which takes all but the shell itself and PID 1


async def end_processes(sandbox: Sandbox) -> None:
    """Send SIGTERM to whatever runs in it, and wait until it has ended, or for `GRACE` seconds.

    An image without a shell has nobody who could ask. Raises SandboxLost when the sandbox has ended.
    """
    if await sandbox.is_quiet():
        return
    deadline = time.monotonic() + GRACE
    with suppress(SandboxError, OSError, ValueError):  # what is left is killed by the stop that follows
        asked = await sandbox.run(_ASK, cwd="/", user="root", timeout=GRACE)
        pause = _FIRST_LOOK
        while asked.ok and not await sandbox.is_quiet() and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = _LATER_LOOKS
