"""Many clients who ask at once for anything: only documented answers, states that settle, and nothing left."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from forkyard.sandbox.local import LocalProvider
from tests.server.sandboxing import Site, site

ACTIONS = ("start", "stop", "pause", "resume", "fork", "timeout", "get", "delete", "cascade")
GIVEN_UP = "it was given up before it ran"
DOCUMENTED = {
    "start": {200, 202, 404, 409}, "stop": {200, 202, 404, 409}, "pause": {200, 202, 404, 409},
    "resume": {200, 202, 404, 409}, "fork": {202, 404, 409}, "timeout": {200, 404, 409}, "get": {200, 404},
    "delete": {204, 404, 409}, "cascade": {204, 404, 409},
}  # fmt: skip


async def _act(here: Site, sandbox_id: str, action: str) -> int:
    path = f"/api/sandboxes/{sandbox_id}"
    if action in ("delete", "cascade"):
        answer = await here.http.delete(path, params={"cascade": action == "cascade"})
    elif action == "get":
        answer = await here.http.get(path)
    else:
        answer = await here.http.post(
            f"{path}/{action}", params={"wait": True}, json={"timeout": 3600} if action == "timeout" else None
        )
    assert answer.status_code in DOCUMENTED[action], (action, answer.status_code, answer.text)
    return answer.status_code


async def _client(here: Site, seed: int, ids: list[str]) -> set[tuple[str, int]]:
    chance, seen = random.Random(seed), set()
    weights = [3, 3, 3, 3, 4, 1, 2, 1, 0.3]
    for _ in range(25):
        (action,) = chance.choices(ACTIONS, weights)
        seen.add((action, await _act(here, chance.choice(ids), action)))
        ids[:] = [each["sandbox_id"] for each in (await here.ask("GET", ""))["sandboxes"]] or ids
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_asked_at_once_the_answers_are_documented(
    tmp_path: Path, local: LocalProvider, seed: int
) -> None:
    async with site(tmp_path, local) as here:
        ids = [(await here.create(f"root-{number}"))["sandbox_id"] for number in range(3)]
        seen = set().union(*await asyncio.gather(*(_client(here, seed * 100 + number, ids) for number in range(8))))
        assert {("fork", 202), ("stop", 202), ("pause", 202)} <= seen
        for one in (await here.ask("GET", ""))["sandboxes"]:
            await here.life(one).settled()
            now = await here.get(one)
            assert now["status"] in ("running", "paused", "stopped") or now["exit_reason"] == GIVEN_UP, now
        listed = (await here.ask("GET", ""))["sandboxes"]
        known = {f"server-{each['sandbox_id']}" for each in listed if each["exit_reason"] != GIVEN_UP}
        async with asyncio.timeout(120):  # what was given up is taken away after it is told
            while {info.name for info in await local.sandboxes() if "ckpt" not in (info.name or "")} != known:
                await asyncio.sleep(0.05)
        for one in (await here.ask("GET", ""))["sandboxes"]:
            if one["parent_id"] is None:
                await here.delete(one, query="?cascade=true")
        assert await here.ask("GET", "") == {"sandboxes": []}
    assert await local.sandboxes() == []
