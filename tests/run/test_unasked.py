"""Verifiers that are refused their judge: what a run says before it starts, and what is played again once it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkyard.gateway import Gateway, Price, Prices, Upstreams
from forkyard.run import resume, start
from forkyard.run.gateways import unpriced_of
from forkyard.run.unasked import askable
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_task
from tests.model.provider import KEY, playing, reply
from tests.run.parts import Heard, lines, plan_of, write_task

PRICE = '[[price]]\nmodel = "{}"\ninput = 1.0\noutput = 1.0\n'
ASKS = '[verifier]\n[verifier.env]\nOPENAI_API_KEY = "${OPENAI_API_KEY}"\n'
CHECK = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "judge-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it good?"}]})
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head)
try:
    said = json.load(urllib.request.urlopen(asked, timeout=20))["choices"][0]["message"]["content"]
except OSError:
    said = "0"
open("/logs/verifier/reward.txt", "w").write(said)
"""


def line(model: str = "judge-1", refused: str | None = "no_price", **fields: Any) -> dict[str, Any]:
    """A line of a rollout that its judge's refusal left without a score."""
    call: dict[str, Any] = {"model": model, "dialect": "chat", "purpose": "judge", "fault": "run"}
    call |= {"refused": refused} if refused else {"status_code": 403}
    return {"status": "SCORING_ERROR", "errors": [{"type": "judge"}], "calls": [call], **fields}


async def test_what_was_refused_a_judge_is_played_again_once_its_price_is_known(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a", toml=ASKS, check=CHECK)
    prices, run = tmp_path / "prices.toml", tmp_path / "runs/r"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with playing(reply("0.5")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
        (first,) = lines(run)
        assert (first["status"], first["reward"]) == ("SCORING_ERROR", None), first["reason"]
        prices.write_text(PRICE.format("another"))
        for given in (None, prices):
            assert (await resume(run, Heard(), provider=LocalProvider(home), prices=given)).played == 0
        prices.write_text(PRICE.format("judge-*"))
        heard = Heard()
        assert (await resume(run, heard, provider=LocalProvider(home), prices=prices)).played == 1
    assert any("1 SCORING_ERROR to be played again" in note for note in heard.notes)
    (second,) = lines(run)
    assert (second["status"], second["reward"], second["attempt"]) == ("SCORED", 0.5, 1)


@pytest.mark.parametrize(
    ("record", "again"),
    [
        (line(), True),
        (line("an-invention"), False),
        (line(refused=None), True),
        (line(refused="no_upstream"), True),
        (line(refused="rollout_stopped"), False),
        (line(refused="of another version"), False),
        (line(status="SCORED"), False),
        (line(errors=[{"type": "task"}]), False),
        (line(calls=None, errors=None), False),
    ],
    ids=[
        "priced now",
        "no price yet",
        "another key may do",
        "somebody can be asked",
        "over a budget",
        "who knows",
        "scored",
        "another error",
        "nothing is known",
    ],
)
def test_lines_of_refused_judges_are_played_again_if_what_lacked_is_there(
    record: dict[str, Any], again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (tmp_path / "prices.toml").write_text(PRICE.format("judge-*"))
    assert askable(plan_of(tmp_path, prices=tmp_path / "prices.toml"))(record) is again


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ('JUDGE_MODEL = "unheard-of"', "JUDGE_MODEL=unheard-of"),
        ('REWARDKIT_JUDGE = "openai/unheard-of"', "REWARDKIT_JUDGE=openai/unheard-of"),
        ('JUDGE_MODEL = "judge-1"', None),
        ('REWARDKIT_JUDGE = "openai/judge-1"', None),
        ('REWARDKIT_JUDGE = "claude-code"', None),
        ('OTHER = "unheard-of"', None),
    ],
)
def test_a_run_says_before_it_starts_that_a_verifiers_model_has_no_price(
    told: str, said: str | None, tmp_path: Path
) -> None:
    task = load_task(write_task(tmp_path, "a", toml=f"{ASKS}{told}\n"), {"OPENAI_API_KEY": KEY})
    notes = list(unpriced_of([task], Gateway(Upstreams(), Prices((Price(model="judge-*", input=1, output=1),)))))
    assert [name for _, name in notes] == ["t/a"] * (said is not None)
    if said:
        assert said in notes[0][0] and "--prices" in notes[0][0]
