"""A sandbox that could not be made keeps the reason, and its name only until somebody else wants it."""

from __future__ import annotations

from pathlib import Path

from forkyard.sandbox.local import LocalProvider
from tests.server.sandboxing import site

MISSING = {"base_image": "not/there:1"}


async def test_a_failed_sandbox_gives_its_name_to_the_next_also_over_a_restart(
    tmp_path: Path, local: LocalProvider
) -> None:
    async with site(tmp_path, local) as here:
        failed = await here.ask("POST", "?wait=true", 202, {**MISSING, "name": "mine"})
        assert failed["status"] == "failed" and "not/there" in failed["exit_reason"]
        other = await here.ask("POST", "?wait=true", 202, {**MISSING, "name": "other"})
        assert (await here.get(failed))["exit_reason"] == failed["exit_reason"]
        again = await here.create("mine")
        assert [each["name"] for each in (await here.ask("GET", ""))["sandboxes"]] == ["other", "mine"]
        await here.ask("GET", f"/{failed['sandbox_id']}", 404)
        refused = await here.ask("POST", "", 409, {"base_image": "host", "name": "mine"})
        assert refused["code"] == "name_taken"
        await here.do(again, "stop", 202)
    async with site(tmp_path, local) as here:
        assert (await here.get(other))["status"] == "failed"
        fork = await here.do(again, "fork?wait=true", 202, {"name": "other"})
        assert fork["status"] == "running"
        await here.delete(again, query="?cascade=true")
        assert (await here.ask("GET", ""))["sandboxes"] == []
