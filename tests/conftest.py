"""Fixtures every test may use: a home for sandboxes, and the local provider over it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.sandbox.local import LocalProvider

NOWHERE = "docker.io=http://127.0.0.1:9"


@pytest.fixture(scope="session", autouse=True)
def no_registry() -> None:
    """What no test put anywhere is not looked for on the network: nothing listens at that address."""
    os.environ["FORKYARD_MIRRORS"] = NOWHERE


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FORKYARD_HOME shared by the tests of one process, so that the image "host" is made once."""
    return tmp_path_factory.mktemp("forkyard-home")


@pytest.fixture
async def local(home: Path) -> AsyncIterator[LocalProvider]:
    """The local provider; afterwards nothing of it may be left."""
    async with LocalProvider(home) as provider:
        yield provider
