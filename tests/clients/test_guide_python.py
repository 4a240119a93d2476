"""The guide's Python scripts, as they are, with the vendor's own package and the real `openai`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.guide import TABLE
from tests.support.sites import Site

pytestmark = pytest.mark.slow


async def test_the_guides_python_scripts_run_as_they_are_and_leave_nothing(site: Site, guide: Path) -> None:
    for package in ("archil", "openai"):
        pytest.importorskip(package)
    assert await site.run(sys.executable, "prepare.py", cwd=guide) == ""
    *told, last = (await site.run(sys.executable, "rollouts.py", cwd=guide)).splitlines()
    said = {"calc": "0.92 (12/13)", "duration": "1.00 (14/14)", "sales-report": "1.00 (2/2)"}
    assert sorted(told) == [
        f"{task} #{sample}: reward {reward} in 3 steps" for task, reward in said.items() for sample in (0, 1)
    ]
    found = re.fullmatch(r"6 rollouts in \d+s -> (trajectories/run-\d+\.jsonl)", last)
    assert found is not None, last
    assert site.model.asked == [("/v1/chat/completions", "Bearer of-the-gateway")] * 18
    assert await site.run(sys.executable, "score.py", cwd=guide) == TABLE + "\n"

    async with httpx2.AsyncClient(base_url=site.origin, headers={"Authorization": site.env["ARCHIL_API_KEY"]}) as http:
        lines = (await http.get(f"/rl-trajectories/{found[1]}")).text.splitlines()
        assert [json.loads(line)["usage"] for line in lines] == [{"input": 30, "output": 15}] * 6
        assert await site.run(sys.executable, "cleanup.py", cwd=guide) == ""
        assert (await http.get("/api/sandboxes")).json()["data"] == {"sandboxes": []}
        assert (await http.get("/api/disks")).json()["data"] == []
