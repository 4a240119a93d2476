from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(local: LocalProvider) -> AsyncIterator[Sandbox]:
    """A sandbox on the host's /usr, working in /app."""
    sandbox = await local.create(SandboxSpec(workdir="/app"))
    await sandbox.run(["mkdir", "-p", "/app"], cwd="/")
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="module")
async def bare_sandbox(local: LocalProvider) -> AsyncIterator[Sandbox]:
    """A sandbox with nothing in it but sh and rm."""
    sandbox = await local.create(SandboxSpec(image="scratch"))
    for name in ("sh", "rm"):
        program = shutil.which(name) or name
        await sandbox.write(f"/bin/{name}", Path(program).read_bytes(), 0o755)
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", needed):
            await sandbox.write(library, Path(library).read_bytes(), 0o755)
    yield sandbox
    await sandbox.close()
