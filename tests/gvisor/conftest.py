"""A provider of sandboxes in gVisor, where this machine has a runsc; elsewhere the tests are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.errors import ConfigError
from forkyard.sandbox.gvisor import GvisorProvider


@pytest.fixture(scope="session")
def runsc() -> None:
    """Skip what needs a runsc where there is none."""
    try:
        GvisorProvider()
    except ConfigError as err:
        pytest.skip(str(err))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gvisor(runsc: None, home: Path) -> AsyncIterator[GvisorProvider]:
    async with GvisorProvider(home) as provider:
        yield provider
