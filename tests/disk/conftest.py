"""Disks to test: in a directory, and in a bucket of a real S3 server."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forkyard.disk import Bucket, Disk, Disks
from forkyard.disk.bucket.client import connect


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Disks]:
    """A catalogue of its own; afterwards nothing is left in the making."""
    home = tmp_path / "home"
    catalogue = Disks(home)
    yield catalogue
    await catalogue.close()
    for made in ("state/tmp", "branches/*/state/tmp", "drafts"):
        assert list(home.glob(f"named-disks/dsk-*/{made}/*")) == []
    assert list((home / "named-disks" / "owners").iterdir()) == []


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running S3 server; skipped without moto and boto3."""
    for package in ("boto3", "moto", "flask"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the Python package {package} (pip install boto3 'moto[server]')")
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while (found := re.search(r"Running on (http://\S+:\d+)", log.read_text())) is None:  # it listens by then
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        server.kill()
        server.wait()


def new_bucket(server: str) -> Bucket:
    """A bucket made for one test; objects are kept under a prefix of it."""
    bucket = Bucket(f"b-{uuid.uuid4().hex}", "some/where/", server, "us-east-1", "key", "a secret")
    client = connect(bucket)
    client.create_bucket(Bucket=bucket.bucket)
    client.close()
    return bucket


@pytest.fixture(params=["directory", "bucket"])
async def disk(request: pytest.FixtureRequest, disks: Disks) -> Disk:
    """A new disk of each kind."""
    backend = None
    if request.param == "bucket":
        backend = new_bucket(request.getfixturevalue("s3_server"))
    made, _ = await disks.create("a-disk", backend=backend)
    return made


@pytest.fixture
async def plain(disks: Disks) -> Disk:
    """A new disk in a directory."""
    made, _ = await disks.create("plain")
    return made
