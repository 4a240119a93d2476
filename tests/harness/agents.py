"""What the tests of agent CLIs share: packages kept for all tests of a machine, images made of them, rollouts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import HarnessError
from forkyard.harness import Harness, ModelContext
from forkyard.model import Endpoint
from forkyard.run.equipping import equipped
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.task import Task
from forkyard.trace import Trace
from tests.harness.parts import make_task
from tests.support.upstream import Upstream

PACKAGES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forkyard-tests"
PORT = 8765
COMMAND = "echo done > /app/answer.txt && echo written"


@contextmanager
def shared_packages() -> Iterator[None]:
    """What is fetched is kept for later test runs of this machine."""
    before = os.environ.get("FORKYARD_HOME")
    os.environ["FORKYARD_HOME"] = str(PACKAGES)
    try:
        yield
    finally:
        if before is None:
            del os.environ["FORKYARD_HOME"]
        else:
            os.environ["FORKYARD_HOME"] = before


async def equipped_or_skip(local: LocalProvider, harness: Harness, image: str = "host") -> str:
    """The image with a CLI in it; skips the test when its packages cannot be had, and says why."""
    equipment = harness.equipment()
    assert equipment is not None
    with shared_packages():
        try:
            return await equipped(local, image, equipment)
        except HarnessError as err:
            if any(words in str(err) for words in ("cannot be had of", "cannot fetch", "fetching packages")):
                pytest.skip(str(err))
            raise


@asynccontextmanager
async def sandbox_with(local: LocalProvider, harness: Harness, **spec: Any) -> AsyncIterator[Sandbox]:
    """A sandbox with a CLI in it and the directory /app, which everybody may write."""
    image = await equipped_or_skip(local, harness, spec.pop("image", "host"))
    sandbox = await local.create(SandboxSpec(image=image, workdir="/app", **spec))
    try:
        await sandbox.run("mkdir -p -m 1777 /app", cwd="/")
        yield sandbox
    finally:
        await sandbox.close()


@asynccontextmanager
async def reached(sandbox: Sandbox, upstream: Upstream) -> AsyncIterator[Endpoint]:
    """An upstream behind an address inside the sandbox."""
    listening: socket.socket = await sandbox.listen(PORT)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await upstream(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            serving.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, sock=listening)
    try:
        yield Endpoint(f"http://127.0.0.1:{PORT}", "test-model", "a-key-that-opens-nothing")
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def act(
    harness: Harness, sandbox: Sandbox, upstream: Upstream, trace: Trace | None = None, task: Task[Any] | None = None
) -> Trace:
    """One rollout's part of the agent."""
    trace = trace or Trace(task="write")
    async with reached(sandbox, upstream) as endpoint:
        await harness.launch(ModelContext(endpoint=endpoint), task or make_task(), trace, sandbox)
    return trace
