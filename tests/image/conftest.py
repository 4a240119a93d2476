from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.sandbox import Feature
from forkyard.sandbox.local import LocalProvider


@pytest.fixture
async def provider(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalProvider]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FORKYARD_HOME", str(home))  # where blobs pass through
    monkeypatch.setenv("DOCKER_CONFIG", str(home))  # nobody's login
    async with LocalProvider(home=home) as provider:
        yield provider


@pytest.fixture
def many_users(provider: LocalProvider) -> None:
    """Skips a test where this machine gives sandboxes no users but root."""
    if Feature.USERS not in provider.features:
        pytest.skip("this user's sandboxes have no users but root")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """An empty directory for a Dockerfile and what it copies."""
    (tmp_path / "context").mkdir()
    return tmp_path / "context"
