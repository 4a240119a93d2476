from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.image.oci.parts import running_registry

USER, PASSWORD = "somebody", "a-password-nobody-may-see"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry anybody may use."""
    with running_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def closed_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that wants user and password."""
    directory = tmp_path_factory.mktemp("closed-registry")
    try:
        done = subprocess.run(["htpasswd", "-Bbn", USER, PASSWORD], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("htpasswd is not installed (apt-get install apache2-utils)")
    (directory / "users").write_bytes(done.stdout)
    auth = f"auth:\n  htpasswd:\n    realm: tests\n    path: {directory}/users\n"
    with running_registry(directory, auth) as address:
        yield address
