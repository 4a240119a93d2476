"""A process that owns a sandbox, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from forkyard.sandbox import Limits
from forkyard.sandbox.local import LocalProvider
from tests.machine.inside.limits import TREE, limited


async def main(home: Path) -> None:
    async with LocalProvider(home) as provider:
        _, group = await limited(provider, Limits(memory_mb=48, pids=40))
        print(group.relative_to(TREE), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
