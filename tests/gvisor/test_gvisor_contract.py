"""The contract over the gvisor provider."""

import pytest

from forkyard.sandbox.contract import Check, Outcome, checks, run_check
from forkyard.sandbox.gvisor import GvisorProvider

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
async def test_gvisor_keeps_its_promises(check: Check, gvisor: GvisorProvider) -> None:
    result = await run_check(check, gvisor)
    if result.outcome is Outcome.NOT_DECLARED:
        pytest.skip(result.message)
    assert result.outcome is Outcome.KEPT, result.message
