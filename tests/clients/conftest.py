"""A server as a program, over a home that has the image python:3.13."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.guide import SCRIPTS
from tests.support.leftovers import NOTHING, mounts_of, processes_of, stray_directories
from tests.support.sites import Site, forkyard, serving_site
from tests.support.trixie import python_root


@pytest.fixture(scope="session")
def python_image_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FORKYARD_HOME with the image python:3.13, which is Debian 13's Python here."""
    root = python_root()
    home = tmp_path_factory.mktemp("clients-home")
    forkyard(home, "image", "import", str(root), "python:3.13")
    return home


@pytest.fixture(scope="session")
def guide() -> Path:
    """The guide's scripts, as they are."""
    if not SCRIPTS.is_dir():
        pytest.skip("the guide's scripts (../shared/acceptance/fork_guide) are not beside this repository")
    for program in ("jq", "column"):
        if shutil.which(program) is None:
            pytest.skip(
                f"{program}, which the guide's table is made with, is missing (apt-get install jq bsdextrautils)"
            )
    return SCRIPTS


@pytest.fixture
async def site(python_image_home: Path) -> AsyncIterator[Site]:
    """A server over that home; when it has ended, nothing of it is left but the images."""
    async with serving_site(python_image_home) as made:
        yield made
    assert processes_of(python_image_home) == [] and mounts_of(python_image_home) == []
    assert stray_directories(python_image_home) == NOTHING
