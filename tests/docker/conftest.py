"""A Docker Engine of the tests' own, with an image to start from; skipped where there is none to be had."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.dockerd import DEFAULT_SOCKET, Docker, running_docker
from forkyard.run.images import NAMELESS
from forkyard.sandbox.docker import DockerProvider
from tests.docker.parts import BASE, DEBIAN, has_image
from tests.docker.rootfs import has_python, root_archive


@pytest.fixture(scope="session")
def installed() -> None:
    if shutil.which("dockerd") is None and not DEFAULT_SOCKET.exists():
        pytest.skip("Docker is not installed (apt-get install docker.io)")


@pytest.fixture(scope="session")
def base_archive(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "base.tar"
    path.write_bytes(root_archive())
    return path


@pytest.fixture(scope="session")
def engine(base_archive: Path) -> Iterator[Docker]:
    with running_docker(base_archive, BASE) as found:
        if found is None:
            pytest.skip("no Docker is to be had here (apt-get install docker.io)")
        yield found


@pytest.fixture(scope="session")
def python_image(engine: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image that tasks which name none start from; of this machine's own Python where the Engine has none."""
    if not has_image(engine, NAMELESS):
        if not has_python():
            pytest.skip("the system has no Python of its own to make an image of (apt-get install python3)")
        path = tmp_path_factory.mktemp("python") / "python.tar"
        path.write_bytes(root_archive(python=True))
        subprocess.run(["docker", "-H", engine.address, "import", str(path), NAMELESS], check=True, capture_output=True)
    return NAMELESS


@pytest.fixture(scope="session")
def debian_image(engine: Docker) -> str:
    """The image that the cases name; the tests' own base where the Engine has none."""
    if not has_image(engine, DEBIAN):
        engine.call("POST", f"/images/{BASE}/tag?repo=debian&tag=bookworm-slim")
    return DEBIAN


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def docker(engine: Docker, home: Path) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(home / "docker", engine.address) as provider:
        yield provider
        assert await provider.sandboxes() == []
