"""The contract over the docker provider."""

import pytest

from forkyard.sandbox.contract import Check, Outcome, checks, run_check
from forkyard.sandbox.docker import DockerProvider
from tests.docker.parts import BASE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
async def test_docker_keeps_its_promises(check: Check, docker: DockerProvider) -> None:
    result = await run_check(check, docker, BASE)
    if result.outcome is Outcome.NOT_DECLARED:
        pytest.skip(result.message)
    assert result.outcome is Outcome.KEPT, result.message
