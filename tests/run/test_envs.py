"""A run of any env: its seats, its lines, its retries, its money."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError, EnvError
from forkyard.report import report, to_text
from forkyard.run import Plan, resume, start
from forkyard.run.progress import outcome_line
from forkyard.sandbox import ImageConfig, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.model.provider import KEY, message, playing, reply
from tests.run.parts import Heard, Naps, lines, plan_of, slots_of, write_task
from tests.support.faults import FaultyProvider

PLACED = """
import forkyard as vf

class Where(vf.Task):
    async def setup(self, trace, runtime):
        trace.info["where"] = (await runtime.run("pwd; ls")).stdout

TASKS = [Where(vf.TaskData(name="a"))]
"""
ASKED = """
import forkyard as vf

class Question(vf.TaskData):
    answer: str

TASKS = [vf.Task(Question(name="a", prompt="What is 2 + 3?", answer="5"))]
"""
WRITES = "tests.run.envs:Writes"
PRICES = '[[price]]\nmodel = "fake*"\ninput = 1000.0\noutput = 1000.0\n'  # 15 tokens of a reply are 1.5 cents


def plan_with(tmp_path: Path, env: str, config: dict[str, Any] | None = None, **fields: Any) -> Plan:
    """A plan for an env of `tests.run.envs`, or one of ours."""
    name = env if "-" in env else f"tests.run.envs:{env}"
    given = {"env": name, "env_config": config or {}, "harness": WRITES, **fields}
    return plan_of(tmp_path, **given)


async def test_every_agent_is_what_its_configuration_says_and_leaves_a_line(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    config = {"second": {"harness": {"id": WRITES, "word": "other"}, "timeout": {"rollout": 5.0}}}
    heard = Heard()
    outcome = await start(plan_with(tmp_path, "Pair", config, samples=2), heard, provider=LocalProvider(home))
    assert (outcome.planned, outcome.recorded, outcome.played, outcome.errored) == (2, 2, 2, 0)
    found = lines(tmp_path / "runs/r")
    assert [(line["sample"], line["agent"], line["reward"]) for line in sorted(found, key=lambda x: x["sample"])] == [
        (0, "first", 1.0),
        (0, "second", 0.0),
        (1, "first", 1.0),
        (1, "second", 0.0),
    ]
    assert {line["env"] for line in found} == {"pair"} and len({line["episode"] for line in found}) == 2
    assert heard.ended == [4] and len(heard.records) == 4
    again = await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home))
    assert again.played == 0 and again.recorded == 2


async def test_the_report_does_not_mix_agents(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    config = {"second": {"harness": {"id": WRITES, "word": "other"}}}
    await start(plan_with(tmp_path, "Pair", config), Heard(), provider=LocalProvider(home))
    found = report([tmp_path / "runs/r"])
    assert {(group.agent, group.overall.mean_reward) for group in found.groups} == {("first", 1.0), ("second", 0.0)}
    assert "agent first, harness writes, model -" in to_text(found)
    assert "they differ in agent (first, second)" in to_text(found)


async def test_a_judge_has_no_part_in_the_solvers_reward(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    verdict = json.dumps({"verdicts": [{"name": "solved", "reason": "r", "verdict": "yes"}]})
    script = tmp_path / "judge.json"
    script.write_text(json.dumps({"t/a": [[{"bash": f"echo '{verdict}' > /tmp/verdict.json"}, {"content": "Done."}]]}))
    config = {"judge": {"harness": {"id": "scripted", "script": str(script)}}}
    await start(plan_with(tmp_path, "agentic-judge", config), Heard(), provider=LocalProvider(home))
    found = {line["agent"]: line for line in lines(tmp_path / "runs/r")}
    assert found["solver"]["rewards"]["judge"] == {"score": 1.0, "weight": 1.0}, found["judge"]["reason"]
    groups = {group.agent: group for group in report([tmp_path / "runs/r"]).groups}
    assert groups["solver"].overall.mean_reward == 1.0 and groups["solver"].strict is None
    assert groups["solver"].rewarded and not groups["judge"].rewarded
    assert sorted(map(outcome_line, lines(tmp_path / "runs/r"))) == [
        "t/a #0 judge: done in 2 steps",
        "t/a #0 solver: reward 1.00 in 0 steps",
    ]
    assert "1 rollout that rewards are not for" in to_text(report([tmp_path / "runs/r"]))


async def test_an_episode_that_fails_leaves_what_it_has_and_one_that_starts_nobody_a_line(
    tmp_path: Path, home: Path
) -> None:
    write_task(tmp_path / "tasks", "a")
    for env in ("Breaks", "Never"):
        plan = plan_with(tmp_path, env, run=env, retries=0)
        outcome = await start(plan, Heard(), provider=LocalProvider(home))
        assert (outcome.planned, outcome.played) == (1, 1)
        (line,) = lines(tmp_path / "runs" / env)
        assert line["env"] == env.lower() and slots_of(tmp_path / "runs" / env) == [("t/a", 0)]
    assert "KeyError" in json.dumps(lines(tmp_path / "runs/Breaks"))
    assert "started no agent" in lines(tmp_path / "runs/Never")[0]["reason"]


async def test_an_env_that_fails_after_an_agent_acted_is_told_counted_and_played_again_on_purpose_only(
    tmp_path: Path, home: Path
) -> None:
    write_task(tmp_path / "tasks", "a")
    heard = Heard()
    outcome = await start(plan_with(tmp_path, "Breaks"), heard, provider=LocalProvider(home))
    assert (outcome.played, outcome.errored) == (1, 1)
    assert "t/a #0: error of the env's own code: Breaks.run(): KeyError: 'mine'" in heard.notes
    (group,) = report([tmp_path / "runs/r"]).groups
    assert (group.overall.scored, group.overall.errors, group.overall.mean_reward) == (1, 1, 1.0)
    assert group.notes[0].startswith("1 scored rollout of episodes whose env failed")
    heard = Heard()
    again = await resume(tmp_path / "runs/r", heard, provider=LocalProvider(home))
    assert (again.played, again.errored) == (1, 1)
    assert any("1 SCORED that the env did not complete to be played again" in note for note in heard.notes)
    assert [line["attempt"] for line in lines(tmp_path / "runs/r")] == [1]


async def test_an_env_says_which_of_its_episodes_a_resumed_run_keeps(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    for env, played, attempts in (("Unsure", 1, [1, 1]), ("Forgives", 0, [0]), ("Pair", 0, [0, 0])):
        await start(plan_with(tmp_path, env, run=env), Heard(), provider=LocalProvider(home))
        again = await resume(tmp_path / "runs" / env, Heard(), provider=LocalProvider(home))
        assert again.played == played, env
        assert [line["attempt"] for line in lines(tmp_path / "runs" / env)] == attempts
        last = await resume(tmp_path / "runs" / env, Heard(), provider=LocalProvider(home))
        assert last.played == 0, env


async def test_an_env_that_cannot_say_whether_it_is_done_has_failed(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    outcome = await start(plan_with(tmp_path, "Puzzled"), Heard(), provider=LocalProvider(home))
    assert (outcome.played, outcome.errored) == (1, 1)
    found = lines(tmp_path / "runs/r")
    assert {line["info"]["env_error"] for line in found} == {"Puzzled.complete(): KeyError: 'what?'"}
    assert [line["status"] for line in found] == ["SCORED", "SCORED"]


async def test_an_env_that_cannot_start_is_told(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    with pytest.raises(EnvError, match="env tests.run.envs:Cannot could not start: RuntimeError: no room"):
        await start(plan_with(tmp_path, "Cannot"), Heard(), provider=LocalProvider(home))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"third": {}}, "env third: Extra inputs are not permitted"),
        ({"first": {"max_turns": 0}}, "env first.max_turns"),
        ({"first": {"harness": {"id": "writs"}}}, "there is no harness 'writs'"),
        ({"first": {"runtime": {"type": "locl"}}}, "did you mean 'local'"),
        ({"first": {"model": "m"}}, "agent first: the harness 'writes' asks no model"),
        ({"second": {"harness": {"id": "bash"}}}, "the harness 'bash' needs a model"),
        ({"second": {"harness": {"id": WRITES, "wrd": 1}}}, "has no option 'wrd'"),
        ({"second": {"runtime": {"type": "subprocess"}}}, "which the provider subprocess does not promise"),
    ],
)
async def test_what_an_agent_cannot_have_is_told_before_anything_starts(
    tmp_path: Path, home: Path, config: dict[str, Any], said: str
) -> None:
    write_task(tmp_path / "tasks", "a")
    with pytest.raises(ConfigError) as told:
        await start(plan_with(tmp_path, "Pair", config), Heard(), provider=LocalProvider(home))
    assert said in str(told.value) and not (tmp_path / "runs").exists()


async def test_an_agents_image_and_workdir_stand_where_the_task_names_none(tmp_path: Path, home: Path) -> None:
    (tmp_path / "tasks.py").write_text(PLACED)
    config = {"second": {"runtime": {"workdir": "/srv"}}, "first": {"runtime": {"image": "mine", "workdir": "/opt"}}}
    local = LocalProvider(home)
    sandbox = await local.create(SandboxSpec(image="host"))
    await sandbox.write("/opt/mark", b"")
    await sandbox.stop()
    await local.commit(sandbox, "mine", ImageConfig())
    plan = plan_with(tmp_path, "Pair", config, harness="nop", paths=(tmp_path / "tasks.py",), base=None)
    await start(plan, Heard(), provider=local)
    found = {line["agent"]: line["info"]["where"] for line in lines(tmp_path / "runs/r")}
    assert found == {"first": "/opt\nmark\n", "second": "/srv\n"}


async def test_agents_of_one_provider_share_it_and_its_images(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKYARD_HOME", str(home))
    write_task(tmp_path / "tasks", "a", docker="FROM host\nRUN mkdir -p /app && echo x > /app/x\n")
    here = {"runtime": {"type": "local"}}
    heard = Heard()
    await start(plan_with(tmp_path, "Pair", {"first": here, "second": here}, base=None), heard)
    assert [line["reward"] for line in lines(tmp_path / "runs/r")] == [1.0, 1.0]
    async with LocalProvider(home) as later:
        assert await later.sandboxes() == []


@pytest.mark.parametrize(("of_run", "of_env", "played"), [(1, 0, 2), (0, 1, 2), (0, 0, 1)])
async def test_a_whole_episode_is_played_again_as_often_as_run_and_env_allow(
    tmp_path: Path, home: Path, of_run: int, of_env: int, played: int
) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan_with(tmp_path, "Pair", run="first"), Heard(), provider=LocalProvider(home))  # makes what is kept
    provider = FaultyProvider(LocalProvider(home), 0)
    await start(plan_with(tmp_path, "Pair", run="count"), Heard(), provider=provider)
    second = [number for number, call in enumerate(provider.calls, 1) if call == "create"][1]
    broken = FaultyProvider(LocalProvider(home), second)
    naps, heard = Naps(), Heard()
    config = {"retries": {"max_retries": of_env}}
    await start(plan_with(tmp_path, "Pair", config, retries=of_run), heard, provider=broken, sleep=naps)
    found = lines(tmp_path / "runs/r")
    assert len(naps.seconds) == played - 1 and [line["agent"] for line in found] == ["first", "second"]
    assert {line["attempt"] for line in found} == {played - 1}
    statuses = [line["status"] for line in found]
    assert statuses == (["SCORED", "SCORED"] if played == 2 else ["SCORED", "INFRASTRUCTURE_ERROR"])
    assert ("earlier_attempts" in found[0]["info"]) is (played == 2)


class TestMoney:
    """One gateway holds the keys and the budget of a run."""

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_task(tmp_path / "tasks", "a")
        write_task(tmp_path / "tasks", "b")
        (tmp_path / "prices.toml").write_text(PRICES)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def test_what_a_run_costs_is_on_its_lines_and_in_its_report(self, tmp_path: Path, home: Path) -> None:
        async with playing({**reply("Done."), "repeat": True}) as model:
            plan = plan_of(tmp_path, harness="bash", model="fake", base_url=model.url, prices=tmp_path / "prices.toml")
            await start(plan, Heard(), provider=LocalProvider(home))
        assert [line["cost_usd"] for line in lines(tmp_path / "runs/r")] == [pytest.approx(0.015)] * 2
        found = report([tmp_path / "runs/r"])
        assert found.totals.cost_usd == pytest.approx(0.03) and "cost $0.0300" in to_text(found)
        assert KEY not in (tmp_path / "runs/r/traces.jsonl").read_text()

    async def test_a_judge_asks_its_model_though_no_agent_does(self, tmp_path: Path, home: Path) -> None:
        (tmp_path / "tasks.py").write_text(ASKED)
        async with playing({**reply("yes"), "repeat": True}) as model:
            plan = plan_of(
                tmp_path,
                paths=(tmp_path / "tasks.py",),
                harness="tests.run.envs:Says",
                taskset_config={"task": {"judges": [{"id": "reference", "model": "fake"}]}},
                base_url=model.url,
                prices=tmp_path / "prices.toml",
                budget_usd=10.0,
            )
            await start(plan, Heard(), provider=LocalProvider(home))
        (line,) = lines(tmp_path / "runs/r")
        assert line["rewards"] == {"reference": {"score": 1.0, "weight": 1.0}} and line["reward"] == 1.0
        found = report([tmp_path / "runs/r"])
        assert found.totals.judges_usd == found.totals.cost_usd == pytest.approx(0.015)
        nobody = plan.model_copy(update={"taskset_config": {"task": {"judges": [{"id": "reference"}]}}, "run": "x"})
        with pytest.raises(ConfigError, match="judge reference asks a model, and neither it nor its agent names one"):
            await start(nobody, Heard(), provider=LocalProvider(home))

    async def test_a_run_ends_when_its_money_is_spent_and_goes_on_with_more(self, tmp_path: Path, home: Path) -> None:
        async with playing({**reply(message(None, ["true"]), "tool_calls"), "repeat": True}) as model:
            plan = plan_of(
                tmp_path,
                harness="bash",
                model="fake",
                base_url=model.url,
                prices=tmp_path / "prices.toml",
                sampling={"max_tokens": 5},
                budget_usd=0.5,
                concurrent=1,
            )
            outcome = await start(plan, Heard(), provider=LocalProvider(home))
            assert outcome.stopped is not None and "0.5" in outcome.stopped and outcome.recorded == 1
            (line,) = lines(tmp_path / "runs/r")
            assert (line["status"], line["stop"]) == ("BUDGET", "budget") and line["cost_usd"] <= 0.5
            more = await resume(tmp_path / "runs/r", Heard(), provider=LocalProvider(home), budget_usd=0.9)
            assert more.played == 1 and more.stopped is not None
            assert f"budget of 0.9 USD for the run: {line['cost_usd']:.1f}"[:-2] in more.stopped
        total = sum(line["cost_usd"] for line in lines(tmp_path / "runs/r"))
        assert line["cost_usd"] < total <= 0.9

    async def test_money_without_a_price_is_refused_before_anything_starts(self, tmp_path: Path, home: Path) -> None:
        plan = plan_of(tmp_path, harness="bash", model="nobody-knows", base_url="http://127.0.0.1:9", budget_usd=1.0)
        with pytest.raises(ConfigError, match="needs the price of model 'nobody-knows'"):
            await start(plan, Heard(), provider=LocalProvider(home))
        assert not (tmp_path / "runs").exists()

    async def test_every_agent_may_have_its_own_model_and_budget(self, tmp_path: Path, home: Path) -> None:
        config = {
            "first": {"harness": {"id": "bash"}, "model": "fake-1", "sampling": {"temperature": 0.5}},
            "second": {"harness": {"id": "bash"}, "model": "fake-2", "budget": {"calls": 1}, "max_turns": 2},
        }
        async with playing({**reply(message(None, ["true"]), "tool_calls"), "repeat": True}) as model:
            plan = plan_with(
                tmp_path, "Pair", config, base_url=model.url, limit=1, max_turns=3, sampling={"temperature": 0.1}
            )
            await start(plan, Heard(), provider=LocalProvider(home))
        found = {line["agent"]: line for line in lines(tmp_path / "runs/r")}
        assert (found["first"]["model"], found["first"]["steps"], found["first"]["stop"]) == ("fake-1", 3, "max_turns")
        assert (found["second"]["model"], found["second"]["steps"], found["second"]["stop"]) == ("fake-2", 1, "budget")
        asked = {(body["model"], body.get("temperature")) for body in (one.body for one in model.asked)}
        assert asked == {("fake-1", 0.5), ("fake-2", 0.1)}
