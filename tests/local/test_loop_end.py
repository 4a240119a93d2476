"""A loop that ends under an engine which nobody closed: quietly, and with nothing left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.support.leftovers import processes_of

PROGRAM = """
import asyncio, sys
from pathlib import Path
from forkyard.sandbox import SandboxSpec
from forkyard.sandbox.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        box = await provider.create(SandboxSpec())
        await asyncio.sleep(0)
        await box.close()

asyncio.run(main())
"""


def test_a_loop_that_ends_while_the_next_sandbox_is_made_says_nothing(tmp_path: Path) -> None:
    for times in (1, 2, 3):
        command = [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "ignore::ResourceWarning",
            "-c",
            PROGRAM,
            str(tmp_path),
            str(times),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, "")
    while processes_of(tmp_path):
        time.sleep(0.01)
