"""The contract over the provider `remote`, against a server in a process of its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.sandbox import Feature
from forkyard.sandbox.contract import Check, Outcome, checks, run_check
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.remote import RemoteProvider
from tests.support.serving import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def place(home: Path) -> Iterator[Served]:
    with served(home) as place:
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(place: Served) -> AsyncIterator[RemoteProvider]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_OF_THE_SERVER", place.key)
        made = RemoteProvider(place.url, "KEY_OF_THE_SERVER")
    async with made:
        yield made


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
async def test_remote_keeps_its_promises(check: Check, provider: RemoteProvider) -> None:
    result = await run_check(check, provider)
    if result.outcome is Outcome.NOT_DECLARED:
        pytest.skip(result.message)
    assert result.outcome is Outcome.KEPT, result.message


async def test_remote_promises_what_the_servers_provider_does_but_for_its_files(provider: RemoteProvider) -> None:
    assert provider.features == LocalProvider().features - {Feature.MOUNTS, Feature.COMPOSE}
