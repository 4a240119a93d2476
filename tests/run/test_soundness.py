"""Checking a task by playing it: what its verifier needs to ask a model is said as in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.run.soundness import Conditions, play_task
from tests.model.provider import playing, reply
from tests.run.parts import write_task

ASKS = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "judge-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it good?"}]})
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head)
try:
    said = json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]["content"]
except OSError:
    said = "0"
open("/logs/verifier/reward.txt", "w").write(said)
"""
PRICES = '[[price]]\nmodel = "judge-1"\ninput = 1.0\noutput = 1.0\n'


@pytest.fixture
def judged(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task whose verifier asks a model; the host's key is set, and no address."""
    monkeypatch.setenv("FORKYARD_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "test-key-of-nobody")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "prices.toml").write_text(PRICES)
    toml = '[verifier.env]\nOPENAI_API_KEY = "${OPENAI_API_KEY}"\n'
    return write_task(tmp_path / "tasks", "a", check=ASKS, toml=toml)


async def test_a_verifier_asks_its_model_where_and_at_the_prices_that_are_said(tmp_path: Path, judged: Path) -> None:
    async with playing(reply("0"), reply("1"), reply("1")) as upstream:
        asking = {"base_url": upstream.url, "prices": tmp_path / "prices.toml", "budget_usd": 1.0}
        found = await play_task(judged, Conditions(base="host", repeat=1, asking=asking))
    assert (found.findings, found.problems, len(upstream.asked)) == ([], [], 3)


async def test_a_judge_that_is_refused_is_no_fault_of_the_solution(judged: Path) -> None:
    async with playing(reply("1")) as upstream:
        found = await play_task(judged, Conditions(base="host", repeat=1, asking={"base_url": upstream.url}))
    assert upstream.asked == [] and found.findings == []
    assert found.problems and all("no price is known for judge-1" in problem for problem in found.problems)


async def test_what_cannot_be_said_of_asking_is_told(judged: Path) -> None:
    found = await play_task(judged, Conditions(base="host", repeat=1, asking={"verifier_env": {"PATH": "/x"}}))
    assert found.findings == [] and "--ve PATH=/x is refused" in found.problems[0]
