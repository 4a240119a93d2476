"""Verifiers of task directories that ask a model: what they get, what it costs, and when they are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import forkyard as vf
from forkyard.env import SingleAgentEnv
from forkyard.errors import ConfigError
from forkyard.gateway import Budget, Gateway, Price, Prices, Upstream, Upstreams
from forkyard.harness import NopHarness
from forkyard.model import Place
from forkyard.run import Plan
from forkyard.run.gateways import gateway_of, verifiers_of
from forkyard.sandbox.local import LocalProvider
from forkyard.task import VerifierMode, load_task
from forkyard.trace import Status
from tests.env.parts import Commands, play, seat
from tests.model.provider import FakeProvider, error, playing, reply
from tests.run.parts import agent_of

HEAD = '[task]\nname = "cases/judged"\n[environment]\ndocker_image = "host"\nnetwork_mode = "no-network"\n[verifier]\n'
ASKS = HEAD + 'environment_mode = "{}"\n[verifier.env]\nOPENAI_API_KEY = "${{OPENAI_API_KEY}}"\nPLAIN = "${{PLAIN}}"\n'
SECRETS = {"OPENAI_API_KEY": "sk-a-real-key-of-the-host", "PLAIN": "plain-value-of-the-host"}
TEST = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "judge-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it good?"}]})
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head)
said = json.load(urllib.request.urlopen(asked, timeout=20))["choices"][0]["message"]["content"]
print({name: value for name, value in os.environ.items() if "OPENAI" in name or "REWARDKIT" in name})
open("/logs/verifier/reward.txt", "w").write(said)
"""

# As most scripts have it: whatever goes wrong is a 0. It asks twice before it gives up.
ZERO_ON_FAILURE = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "judge-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Is it good?"}]})
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head)
said = "0"
for _ in range(2):
    try:
        said = json.load(urllib.request.urlopen(asked, timeout=20))["choices"][0]["message"]["content"]
        break
    except OSError as err:
        print(err)
open("/logs/verifier/reward.txt", "w").write(said)
"""
STAYS_AND_ASKS = """
import urllib.error, urllib.request
open("/stays", "w").close()
while True:
    body = b"{\\"model\\": \\"of-no-price\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"x\\"}]}"
    head = {"Content-Type": "application/json", "Authorization": "Bearer forkyard"}
    try:
        urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:9170/v1/chat/completions", body, head))
    except urllib.error.HTTPError as err:
        open("/told.new", "w").write(str(err.code))
        __import__("os").replace("/told.new", "/told")
        break
    except OSError:
        pass
__import__("time").sleep(1000)
"""
WAITS_FOR_IT = """import json, os, time, urllib.request
while not os.path.exists("/told"):
    time.sleep(0.01)
print("it was told", open("/told").read())
"""


def judged(root: Path, toml: str, test: str = TEST) -> vf.Task:
    files = {"task.toml": toml, "instruction.md": "Do it.\n", "environment/nothing": "", "tests/test.sh": test}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return load_task(root, SECRETS)


@asynccontextmanager
async def priced(usd: float, *replies: dict[str, object]) -> AsyncIterator[tuple[Gateway, FakeProvider]]:
    async with playing(*replies) as upstream:
        table = Upstreams((Upstream(Place(upstream.url), "test-key-of-nobody"),))
        gateway = Gateway(table, Prices((Price(model="judge-*", input=usd, output=usd),)))
        try:
            yield gateway, upstream
        finally:
            await gateway.close()


async def played(local: LocalProvider, gateway: Gateway | None, task: vf.Task) -> vf.Trace:
    chosen = seat(local, NopHarness(), gateway=gateway)
    (trace,) = (await play(SingleAgentEnv(), task, {"agent": chosen})).traces
    return trace


@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_a_verifier_reaches_a_model_without_a_network_and_without_a_key(
    mode: VerifierMode, local: LocalProvider, tmp_path: Path
) -> None:
    async with priced(1000.0, reply("0.5")) as (gateway, upstream):
        trace = await played(local, gateway, judged(tmp_path, ASKS.format(mode)))
    assert (trace.status, trace.reward) == (Status.SCORED, 0.5), trace.reason
    assert upstream.asked[0].headers["authorization"] == "Bearer test-key-of-nobody"
    assert [call.purpose for call in trace.calls] == ["judge"]
    assert trace.verifier["judge_cost_usd"] == trace.cost_usd == pytest.approx(0.015)
    assert trace.usage.total == 0 and trace.steps == 0
    assert "sk-a-real-key" not in str(trace.to_record()) and "test-key" not in str(trace.verifier)
    seen = trace.verifier["output_tail"]
    assert "'OPENAI_API_BASE': 'http://127.0.0.1:" in seen and "'OPENAI_API_KEY': 'fy-" in seen


async def test_its_budget_is_at_most_5_dollars_and_being_over_it_is_no_score(
    local: LocalProvider, tmp_path: Path
) -> None:
    async with priced(1_000_000.0, reply("1")) as (gateway, upstream):
        trace = await played(local, gateway, judged(tmp_path, ASKS.format("shared")))
    assert upstream.asked == []
    assert (trace.status, trace.reward) == (Status.BUDGET, None)
    assert "budget of 5 USD" in str(trace.reason)


async def test_a_judge_without_a_price_is_no_score_and_on_the_line(local: LocalProvider, tmp_path: Path) -> None:
    test = ZERO_ON_FAILURE.replace("judge-1", "nobody-knows")
    async with priced(1000.0, reply("1")) as (gateway, upstream):
        trace = await played(local, gateway, judged(tmp_path, ASKS.format("separate"), test))
    assert upstream.asked == []
    assert (trace.status, trace.reward) == (Status.SCORING_ERROR, None)
    assert "no price is known for nobody-knows" in str(trace.reason)
    (call,) = trace.to_record()["calls"]
    assert (call["model"], call["purpose"], call["refused"]) == ("nobody-knows", "judge", "no_price")
    assert [(error["type"], error["lasting"]) for error in trace.errors] == [("judge", True)]
    assert trace.verifier["code"] == "judge_unanswered" and "400" in trace.verifier["output_tail"]


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([error(503, "down")], (Status.INFRASTRUCTURE_ERROR, None)),
        ([error(503, "down") | {"repeat": False}, reply("0.5")], (Status.SCORED, 0.5)),
        ([error(400, "no such member")], (Status.SCORED, 0.0)),
    ],
    ids=["it stays down", "it comes back", "it takes no such request"],
)
async def test_a_judge_that_cannot_be_asked_is_no_score_unless_it_is_asked_again(
    replies: list[dict[str, object]], outcome: tuple[Status, float | None], local: LocalProvider, tmp_path: Path
) -> None:
    async with priced(1.0, *replies) as (gateway, upstream):
        trace = await played(local, gateway, judged(tmp_path, ASKS.format("shared"), ZERO_ON_FAILURE))
    assert len(upstream.asked) == 2
    assert (trace.status, trace.reward) == outcome, trace.reason


async def test_a_separate_verifier_whose_judge_failed_is_tried_again(local: LocalProvider, tmp_path: Path) -> None:
    replies = {**error(503, "down"), "repeat": False, "times": 2}, reply("0.5")
    async with priced(1.0, *replies) as (gateway, _):
        trace = await played(local, gateway, judged(tmp_path, ASKS.format("separate"), ZERO_ON_FAILURE))
    assert (trace.status, trace.reward, trace.errors) == (Status.SCORED, 0.5, []), trace.reason
    assert "got no answer" in trace.verifier["failed_attempts"][0]


async def test_what_the_agent_left_running_cannot_ask_at_the_verifiers_address(
    local: LocalProvider, tmp_path: Path
) -> None:
    left = f"nohup python3 -c '{STAYS_AND_ASKS}' > /dev/null 2>&1 & until [ -e /stays ]; do sleep 0.01; done"
    test = TEST.replace("import json, os, urllib.request\n", WAITS_FOR_IT)
    async with priced(1000.0, reply("0.5")) as (gateway, upstream):
        chosen = seat(local, Commands(left), gateway=gateway)
        task = judged(tmp_path, ASKS.format("shared"), test)
        (trace,) = (await play(SingleAgentEnv(), task, {"agent": chosen})).traces
    assert trace.verifier["left_running"] and "it was told 401" in trace.verifier["output_tail"], trace.reason
    assert (trace.status, trace.reward, len(upstream.asked)) == (Status.SCORED, 0.5, 1), trace.reason
    assert [call.model for call in trace.calls] == ["judge-1"]


@pytest.mark.parametrize(
    ("budget", "rewards"), [(None, [0.5, 1.0]), (0.09, [0.5, None])], ids=["both are paid", "one is paid"]
)
async def test_the_judges_of_all_steps_have_one_budget_and_one_account(
    budget: float | None, rewards: list[float | None], local: LocalProvider, tmp_path: Path
) -> None:
    steps = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two"))
    for name in ("one", "two"):
        (tmp_path / "steps" / name).mkdir(parents=True)
        (tmp_path / "steps" / name / "instruction.md").write_text("Do it.\n")
    async with priced(1000.0, reply("0.5"), reply("1")) as (gateway, upstream):
        bound = None if budget is None else Budget(usd=budget)
        chosen = seat(local, NopHarness(), gateway=gateway, model="judge-1", budget=bound)
        task = judged(tmp_path, ASKS.format("shared") + steps)
        (trace,) = (await play(SingleAgentEnv(), task, {"agent": chosen})).traces
    assert [stage["reward"] for stage in trace.verifier["stages"]] == rewards, trace.reason
    paid = sum(reward is not None for reward in rewards)
    assert len(upstream.asked) == paid
    assert trace.verifier["judge_cost_usd"] == pytest.approx(0.015 * paid) == pytest.approx(trace.cost_usd)


async def test_what_a_run_says_to_verifiers_wins_and_anything_else_is_refused_by_name(
    local: LocalProvider, tmp_path: Path
) -> None:
    test = '#!/bin/bash\necho "$REWARDKIT_JUDGE $REWARDKIT_MODEL"; echo 1 > /logs/verifier/reward.txt\n'
    task = judged(tmp_path, HEAD + '[verifier.env]\nREWARDKIT_MODEL = "opus"\n', test)
    told = task.with_verifier_env({"REWARDKIT_JUDGE": "claude", "REWARDKIT_MODEL": "sonnet"})
    assert (await played(local, None, told)).verifier["output_tail"] == "claude-code sonnet\n"
    with pytest.raises(ConfigError, match=r"--ve PATH=/x is refused: .* REWARDKIT_JUDGE and REWARDKIT_MODEL"):
        task.with_verifier_env({"PATH": "/x"})
    with pytest.raises(ConfigError, match="graded by no program"):
        vf.Task(vf.TaskData(name="t")).with_verifier_env({"REWARDKIT_JUDGE": "x"})


def test_a_task_that_wants_a_judge_is_refused_by_name_when_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    task = judged(tmp_path, ASKS.format("shared").replace("OPENAI", "ANTHROPIC"))
    plan = Plan(agent=agent_of("oracle"), paths=(tmp_path,))
    with pytest.raises(ConfigError, match="verifier of task cases/judged asks a model by ANTHROPIC_API_KEY, and no up"):
        gateway_of(plan, list(verifiers_of([task])), 0.0)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-nobody")
    assert gateway_of(plan, list(verifiers_of([task])), 0.0) is not None
