"""The rows of tests/cases/tables/exec.json: commands with the outcome expected of every provider."""

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.sandbox import ProgramResult, Provider, Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.sandbox.values import OUTPUT_LIMIT

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS = json.loads((Path(__file__).parents[1] / "cases" / "tables" / "exec.json").read_text())
# They look at every process there is, which only walls make the sandbox's own.
NEED_WALLS = {"children in own sessions die at the limit"}
PROVIDERS: dict[str, type[LocalProvider] | type[SubprocessProvider]] = {
    "local": LocalProvider,
    "subprocess": SubprocessProvider,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(PROVIDERS))
async def provider(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Provider]:
    async with PROVIDERS[request.param](home / request.param) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
async def test_command_has_the_outcome_expected(row: dict[str, Any], provider: Provider) -> None:
    if row["name"] in NEED_WALLS and provider.name == "subprocess":
        pytest.skip("looks at every process there is: needs walls")
    box = await provider.create(SandboxSpec())
    try:
        start = time.monotonic()
        result = await _run(box, row)
        assert time.monotonic() - start < row["expect"].get("max_wall_s", row["timeout_s"] + 10)
        _compare(result, row["expect"])
        if "then_sh" in row["expect"]:
            assert (await box.run(row["expect"]["then_sh"], timeout=20)).stdout == row["expect"]["then_stdout"]
    finally:
        await box.close()


async def _run(box: Sandbox, row: dict[str, Any]) -> ProgramResult:
    text, times = row.get("stdin_repeat", ("", 0))
    return await box.run(
        ["bash", "-c", row["sh"]] if "sh" in row else row["argv"],  # the rows use bash's printf
        row.get("env"),
        stdin=text.encode() * times,
        timeout=row["timeout_s"],
        output_limit=row.get("output_cap", OUTPUT_LIMIT),
    )


def _compare(result: ProgramResult, expect: dict[str, Any]) -> None:
    got = {
        "exit": result.exit_code,
        "timed_out": result.timed_out,
        "stdout": result.stdout,
        "stdout_bytes_b64": base64.b64encode(result.stdout_bytes).decode(),
        "truncated": result.truncated,
        "stdout_total_bytes": result.stdout_total,
    }
    elsewhere = {"max_wall_s", "then_sh", "then_stdout"}
    assert {key: got[key] for key in expect.keys() - elsewhere} == {
        key: expect[key] for key in expect.keys() - elsewhere
    }
