"""A server with all its parts on a port of its own, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from forkyard.sandbox.local import LocalProvider
from forkyard.server.address import Address
from forkyard.server.listening import Listening, listening
from forkyard.server.serving import Server, opened


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path, local: LocalProvider) -> AsyncIterator[Server]:
    """A server over a FORKYARD_HOME of its own; its sandboxes are those of the shared one."""
    async with opened(tmp_path / "home", local) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def address(server: Server) -> AsyncIterator[Address]:
    """Where it listens."""
    async with listening(server, Listening()) as at:
        yield at


@pytest.fixture
def key(server: Server) -> str:
    """An API key of it."""
    return server.keys.create("tests")[1]


# Plain HTTP: without `verify=False` each client would read the certificates of the whole world, which takes longer than
# most tests of the server do.
@pytest_asyncio.fixture(loop_scope="module")
async def http(address: Address, key: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with that key."""
    headers = {"Authorization": key}
    async with httpx2.AsyncClient(base_url=address.origin, headers=headers, timeout=60, verify=False) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(address: Address) -> AsyncIterator[httpx2.AsyncClient]:
    """A client without any."""
    async with httpx2.AsyncClient(base_url=address.origin, timeout=60, verify=False) as client:
        yield client
