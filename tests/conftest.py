"""Fixtures every test may use: a home for sandboxes, and the local provider over it."""

from __future__ import annotations

import compileall
import os
import sys
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

import forkyard
from forkyard.sandbox.local import LocalProvider

NOWHERE = "docker.io=http://127.0.0.1:9"
LONG = (
    "machine/test_machines.py",
    "harness/test_agent_clis.py",
    "cases/test_cases.py",
    "env/test_rewardkit.py",
    "local/test_ordinary_user.py",
    "docker/test_played.py",
    "run/test_faults.py",
    "server/test_openapi.py",
)
"""Files whose tests take longest. They come first, so that at the end no process has long ones left for itself."""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: hundreds of tests start it, and where bytecode is not kept each would compile it."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(forkyard.__file__).parent, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the bytecode of test modules for the next run: to make it is half of what collecting them takes."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
    for item in items:
        _share_an_engine(item)


def _share_an_engine(item: pytest.Item) -> None:
    """To start one takes longer than most tests that use it, and it belongs to a loop: those of a module share both.

    A test that needs them for itself says so: `@pytest.mark.asyncio(loop_scope="function")`.
    """
    marker = item.get_closest_marker("asyncio")
    if marker and not marker.kwargs and isinstance(item, pytest.Function) and "local" in item.fixturenames:
        item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest.fixture(scope="session", autouse=True)
def no_registry() -> None:
    """What no test put anywhere is not looked for on the network: nothing listens at that address."""
    os.environ["FORKYARD_MIRRORS"] = NOWHERE


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FORKYARD_HOME shared by the tests of one process, so that the image "host" is made once."""
    return tmp_path_factory.mktemp("forkyard-home")


@pytest.fixture(scope="session")
def common_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FORKYARD_HOME shared by the tests of all processes of this run, for images that take long to make."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common-home"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def local(request: pytest.FixtureRequest) -> LocalProvider:
    """The local provider, of which each test leaves nothing. Tests that share a loop share its engine."""
    marker = request.node.get_closest_marker("asyncio")
    shared = marker is None or marker.kwargs.get("loop_scope") == "module"  # without one, its fixtures alone use loops
    provider: LocalProvider = request.getfixturevalue("local_of_module" if shared else "local_of_test")
    return provider


@pytest.fixture
async def local_of_test(home: Path) -> AsyncIterator[LocalProvider]:
    """One with an engine of its own."""
    async with LocalProvider(home) as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local_with_engine(home: Path) -> AsyncIterator[LocalProvider]:
    """The one whose engine runs from the first test of a module to the last."""
    async with LocalProvider(home) as provider:
        yield provider


@pytest_asyncio.fixture(loop_scope="module")
async def local_of_module(local_with_engine: LocalProvider) -> AsyncIterator[LocalProvider]:
    """That one, without what an earlier test left."""
    yield local_with_engine
    await local_with_engine.yard.vacate()
