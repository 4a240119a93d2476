"""The contract over the subprocess provider."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from forkyard.sandbox import Feature
from forkyard.sandbox.contract import Check, Outcome, checks, run_check
from forkyard.sandbox.subprocess import SubprocessProvider

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SubprocessProvider]:
    async with SubprocessProvider(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
async def test_subprocess_keeps_its_promises(check: Check, provider: SubprocessProvider) -> None:
    result = await run_check(check, provider)
    if result.outcome is Outcome.NOT_DECLARED:
        pytest.skip(result.message)
    assert result.outcome is Outcome.KEPT, result.message


async def test_subprocess_promises_nothing_but_forks_and_processes(provider: SubprocessProvider) -> None:
    assert provider.features == {Feature.FORK, Feature.PROCESSES}
