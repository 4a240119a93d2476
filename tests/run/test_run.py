from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.run import Plan, resume, start
from forkyard.run.directory import RunDirectory
from forkyard.sandbox.local import LocalProvider
from tests.model.provider import KEY, message, playing, reply
from tests.run.parts import CHECK, Heard, Naps, lines, plan_of, slots_of, write_task
from tests.support.faults import FaultyProvider

REFUSED = {"status": 401, "body": {"error": {"message": "bad key"}}}


async def test_every_planned_rollout_leaves_one_line_and_its_logs(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "idle", solve="#!/bin/bash\ntrue\n")
    heard = Heard()
    outcome = await start(plan_of(tmp_path, samples=2), heard, provider=LocalProvider(home))
    run = tmp_path / "runs" / "r"
    assert (outcome.planned, outcome.recorded, outcome.played, outcome.errored) == (4, 4, 4, 0)
    assert outcome.directory == run and outcome.stopped is None and outcome.signal is None
    assert slots_of(run) == [("t/good", 0), ("t/good", 1), ("t/idle", 0), ("t/idle", 1)]
    records = lines(run)
    assert {(line["task"], line["reward"]) for line in records} == {("t/good", 1.0), ("t/idle", 0.0)}
    assert {line["run"] for line in records} == {"r"} and len({line["id"] for line in records}) == 4
    for line in records:
        assert (run / "rollouts" / line["id"] / "verifier" / "reward.txt").exists()
    assert heard.ended == [4] and len(heard.records) == 4


async def test_the_plan_is_saved_with_what_the_tasks_were_and_without_the_key(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a", check=CHECK.removeprefix("#!/bin/bash\n"))
    monkeypatch.setenv("MY_KEY", KEY)
    async with playing({**reply("Done."), "repeat": True}) as model:
        plan = plan_of(tmp_path, harness="bash", model="fake", base_url=model.url, api_key_env="MY_KEY")
        await start(plan, Heard(), provider=LocalProvider(home))
    text = (tmp_path / "runs" / "r" / "plan.json").read_text()
    saved = Plan.model_validate_json(text)
    assert saved.api_key_env == "MY_KEY" and KEY not in text
    assert saved.tasks["t/a"].digest.startswith("sha256:")
    assert any("no #! line" in note for note in saved.tasks["t/a"].notes)
    assert any("debian:bookworm-slim" in note for note in saved.tasks["t/a"].notes)
    assert saved.model_copy(update={"tasks": {}}) == plan.model_copy(update={"paths": saved.paths})


async def test_samples_are_interleaved_and_rollouts_side_by_side_are_bounded(tmp_path: Path, home: Path) -> None:
    for name in "abc":
        write_task(tmp_path / "tasks", name)
    local = LocalProvider(home)
    alive: list[int] = []
    heard = Heard(lambda *_: alive.append(sum(box.state == "running" for box in local.store.all("sandbox"))))
    await start(plan_of(tmp_path, samples=2, concurrent=1, harness="nop"), heard, provider=local)
    order = [(task, sample) for task, sample, phase in heard.phases if phase == "fork"]
    assert order == [(f"t/{name}", sample) for sample in range(2) for name in "abc"]
    assert max(alive) == 1

    local = LocalProvider(home)
    alive.clear()
    await start(plan_of(tmp_path, run="r2", samples=3, concurrent=2, verifier="forked"), heard, provider=local)
    assert max(alive) in (2, 3) and len(lines(tmp_path / "runs" / "r2")) == 9


async def test_an_infrastructure_failure_is_retried_and_only_the_last_attempt_is_written(
    tmp_path: Path, home: Path
) -> None:
    write_task(tmp_path / "tasks", "a")
    await start(plan_of(tmp_path, run="warm"), Heard(), provider=LocalProvider(home))  # the image is built by now
    naps, heard = Naps(), Heard()
    provider = FaultyProvider(LocalProvider(home), 0)
    await start(plan_of(tmp_path, run="count"), Heard(), provider=provider)
    first_create = provider.calls.index("create") + 1
    provider = FaultyProvider(LocalProvider(home), first_create)
    outcome = await start(plan_of(tmp_path), heard, provider=provider, sleep=naps)
    (line,) = lines(tmp_path / "runs" / "r")
    assert (line["status"], line["attempt"], line["reward"]) == ("SCORED", 1, 1.0)
    assert len(naps.seconds) == 1 and 0.25 <= naps.seconds[0] <= 0.75
    assert outcome.errored == 0 and len(heard.records) == 1


async def test_what_cannot_be_set_up_is_tried_as_often_as_asked_and_again_by_resume(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a", toml='workdir = "/etc/passwd"\n')
    naps = Naps()
    outcome = await start(plan_of(tmp_path, retries=3), Heard(), provider=LocalProvider(home), sleep=naps)
    run = tmp_path / "runs" / "r"
    (line,) = lines(run)
    assert (line["status"], line["attempt"], outcome.errored) == ("INFRASTRUCTURE_ERROR", 3, 1)
    assert len(naps.seconds) == 3
    assert all(0.25 * 2**n <= pause <= 0.75 * 2**n for n, pause in enumerate(naps.seconds))

    heard = Heard()
    outcome = await resume(run, heard, provider=LocalProvider(home), sleep=naps)
    (again,) = lines(run)
    assert again["id"] != line["id"] and again["attempt"] == 7
    assert lines(run, "superseded.jsonl") == [line]
    assert outcome.errored == 1 and "1 INFRASTRUCTURE_ERROR to be played again" in "".join(heard.notes)


async def test_a_failing_build_is_tried_once_and_recorded_by_every_rollout(tmp_path: Path, home: Path) -> None:
    docker = "FROM debian:bookworm-slim\nRUN echo no luck today; exit 3\n"
    write_task(tmp_path / "tasks", "broken", docker=docker)
    write_task(tmp_path / "tasks", "fine")
    naps, provider = Naps(), FaultyProvider(LocalProvider(home), 0)
    outcome = await start(plan_of(tmp_path, samples=4, concurrent=3), Heard(), provider=provider, sleep=naps)
    records = lines(tmp_path / "runs" / "r")
    broken = [line for line in records if line["task"] == "t/broken"]
    assert len(records) == 8 and len(broken) == outcome.errored == 4
    for line in broken:
        assert line["status"] == "INFRASTRUCTURE_ERROR" and line["error"]["type"] == "image"
        assert "no luck today" in line["reason"] and "Dockerfile" in line["reason"]
    assert naps.seconds == []
    assert all(line["reward"] == 1 for line in records if line["task"] == "t/fine")


async def test_a_refused_key_stops_the_run_at_once_and_resume_plays_the_rest(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        write_task(tmp_path / "tasks", name)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run = tmp_path / "runs" / "r"
    writes = reply(message(None, [f"echo done > /app/answer.txt; printf %s%s {KEY[:9]} {KEY[9:]}"]), "tool_calls")
    later = [entry for _ in range(4) for entry in (writes, reply("It is done."))]
    async with playing(REFUSED, *later) as model:
        plan = plan_of(tmp_path, harness="bash", model="fake", base_url=model.url, concurrent=1)
        outcome = await start(plan, Heard(), provider=LocalProvider(home))
        assert outcome.stopped is not None and "401" in outcome.stopped and KEY not in outcome.stopped
        assert (outcome.planned, outcome.recorded, outcome.errored) == (4, 1, 1)
        (refused,) = lines(run)
        assert refused["error"]["type"] == "authentication" and len(model.asked) == 1

        outcome = await resume(run, Heard(), provider=LocalProvider(home))
    assert (outcome.stopped, outcome.errored, outcome.recorded) == (None, 0, 4)
    assert slots_of(run) == [(f"t/{name}", 0) for name in "abcd"]
    assert [line["reward"] for line in lines(run)] == [1.0] * 4
    assert lines(run, "superseded.jsonl") == [refused]
    assert all(KEY not in path.read_text() for path in run.rglob("*") if path.is_file())


async def test_a_full_disk_stops_the_run_and_costs_no_line(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    run = tmp_path / "runs" / "r"
    await start(plan_of(tmp_path, samples=3, concurrent=1), Heard(), provider=LocalProvider(home))
    first = (run / "traces.jsonl").read_bytes().splitlines(keepends=True)[0]
    limit = 4 << 20
    (run / "traces.jsonl").write_bytes(first + b" " * (limit - len(first) - 1) + b"\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        outcome = await resume(run, Heard(), provider=LocalProvider(home))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.stopped is not None and "File too large" in outcome.stopped
    assert (outcome.recorded, outcome.played) == (1, 0) and slots_of(run) == [("t/a", 0)]
    outcome = await resume(run, Heard(), provider=LocalProvider(home))
    assert outcome.stopped is None and slots_of(run) == [("t/a", 0), ("t/a", 1), ("t/a", 2)]


async def test_resuming_a_complete_run_plays_nothing_and_needs_nothing(tmp_path: Path, home: Path) -> None:
    task = write_task(tmp_path / "tasks", "a")
    run = tmp_path / "runs" / "r"
    await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    before = (run / "traces.jsonl").read_bytes()
    (task / "task.toml").unlink()
    outcome = await resume(run, Heard(), provider=LocalProvider(home))
    assert (outcome.played, outcome.recorded, outcome.planned) == (0, 1, 1)
    assert (run / "traces.jsonl").read_bytes() == before and not (run / "superseded.jsonl").exists()


async def test_a_run_does_not_go_on_with_tasks_that_changed_or_went(tmp_path: Path, home: Path) -> None:
    changed = write_task(tmp_path / "tasks", "changed", toml='workdir = "/etc/passwd"\n')
    gone = write_task(tmp_path / "tasks", "gone", toml='workdir = "/etc/passwd"\n')
    run = tmp_path / "runs" / "r"
    await start(plan_of(tmp_path, retries=0), Heard(), provider=LocalProvider(home))
    before = (run / "traces.jsonl").read_bytes()
    (changed / "instruction.md").write_text("Something else.\n")
    gone.rename(tmp_path / "elsewhere")
    write_task(tmp_path / "tasks", "new")
    with pytest.raises(ConfigError) as caught:
        await resume(run, Heard(), provider=LocalProvider(home))
    assert "changed since run r began: task t/changed\n" in str(caught.value)
    assert f"no longer in {tmp_path / 'tasks'}: task t/gone\n" in str(caught.value)
    assert (run / "traces.jsonl").read_bytes() == before

    (changed / "instruction.md").write_text("Write the word done to /app/answer.txt.\n")
    (tmp_path / "elsewhere").rename(gone)
    await resume(run, Heard(), provider=LocalProvider(home), sleep=Naps())
    assert slots_of(run) == [("t/changed", 0), ("t/gone", 0)]


async def test_two_processes_never_play_the_same_run(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    run = tmp_path / "runs" / "r"
    await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    holder, _ = RunDirectory.open(run)
    with holder, pytest.raises(ConfigError, match="another process"):
        await resume(run, Heard(), provider=LocalProvider(home))


@pytest.mark.parametrize("left", ["plan.json", "traces.jsonl", "notes.txt"])
async def test_a_directory_that_holds_something_is_no_place_for_a_new_run(
    tmp_path: Path, home: Path, left: str
) -> None:
    write_task(tmp_path / "tasks", "a")
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    (run / left).write_text("")
    with pytest.raises(ConfigError, match="choose another name"):
        await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    assert (run / left).read_text() == ""


async def test_everything_wrong_is_said_at_once_and_nothing_is_started(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("a", "b"):
        write_task(tmp_path / name, "twin", docker=f"FROM debian:{name}\n")
    write_task(tmp_path / "a", "mistyped", docker="FRUM x\n")
    write_task(tmp_path / "a", "bare", docker="FROM debian:a\nCOPY nothing /x\n")
    paths = (tmp_path / "a", tmp_path / "b", tmp_path / "c")
    plan = plan_of(tmp_path, paths=paths, base=None, harness="bash", model="m", options={"max_turn": "3"})
    with pytest.raises(ConfigError) as caught:
        await start(plan, Heard(), provider=LocalProvider(home))
    said = "\n".join(caught.value.problems)
    assert "max_turn" in said and "OPENAI_BASE_URL" in said and str(tmp_path / "c") in said
    assert not (tmp_path / "runs").exists()

    plan = plan_of(tmp_path, paths=paths[:2], base=None)
    with pytest.raises(ConfigError) as caught:
        await start(plan, Heard(), provider=LocalProvider(home))
    said = "\n".join(caught.value.problems)
    assert "two tasks are called t/twin" in said and "FRUM" in said
    assert "'debian:a'" in said and "'debian:b'" in said


async def test_the_oracle_needs_a_solution_and_scripts_a_script(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    write_task(tmp_path / "tasks", "bare", solve=None)
    with pytest.raises(ConfigError, match=r"solve\.sh for the oracle to run \(task t/bare\)"):
        await start(plan_of(tmp_path), Heard(), provider=LocalProvider(home))
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps({"t/a": [[{"content": "no"}]]}))
    plan = plan_of(tmp_path, harness="scripted", options={"script": str(scripts)})
    with pytest.raises(ConfigError, match="no script for task 't/bare'"):
        await start(plan, Heard(), provider=LocalProvider(home))


async def test_a_task_that_needs_what_the_provider_lacks_is_refused(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    with pytest.raises(ConfigError, match=r"needs isolated, which the provider subprocess .*: -e local \(task t/a\)"):
        await start(plan_of(tmp_path, provider="subprocess"), Heard())


async def test_a_refusal_names_the_file_the_line_the_key_and_the_mend(tmp_path: Path) -> None:
    for name in "ab":
        task = write_task(tmp_path / "tasks", name)
        toml = '[environment]\ncpus = 1\nallow_internet = true\n[agent]\nuser = "bob"\n'
        (task / "task.toml").write_text(f'[task]\nname = "t/{name}"\n{toml}')
    with pytest.raises(ConfigError) as caught:
        await start(plan_of(tmp_path, provider="subprocess", verifier="forked", base=None), Heard())
    first = tmp_path / "tasks" / "a"
    wanted = {
        "public_network": f"{first / 'task.toml'}, line 5: environment.allow_internet = true: needs public_network, ",
        "users": f'{first / "task.toml"}, line 7: agent.user = "bob": needs users, ',
        "limit_cpu": f"{first / 'task.toml'}, line 4: environment.cpus = 1.0: needs limit_cpu, ",
        "images": f"{first / 'environment/Dockerfile'}: needs images, ",
        "isolated": f"{first / 'task.toml'}: needs isolated, ",
        "fork": "--verifier: needs fork, ",
    }
    said = [problem for problem in caught.value.problems if "does not promise" in problem]
    for feature, begin in wanted.items():
        for problem in said:
            if f"needs {feature}," in problem:
                assert problem.startswith(begin) and problem.endswith(" (2 tasks: t/a, t/b)") and "; " in problem
    assert {problem.split("needs ")[1].split(",")[0] for problem in said} <= {*wanted, "no_network"}
    assert any("write network_mode" in problem for problem in said)


async def test_a_model_is_asked_for_where_it_is_needed_and_refused_where_it_is_not(tmp_path: Path, home: Path) -> None:
    write_task(tmp_path / "tasks", "a")
    with pytest.raises(ConfigError, match="needs a model: name one"):
        await start(plan_of(tmp_path, harness="bash"), Heard(), provider=LocalProvider(home))
    with pytest.raises(ConfigError, match="leave gpt out"):
        await start(plan_of(tmp_path, model="gpt"), Heard(), provider=LocalProvider(home))
    plan = plan_of(tmp_path, harness="bash", model="m", base_url="http://x/v1", api_key_env="NOT_SET_ANYWHERE")
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE is not set"):
        await start(plan, Heard(), provider=LocalProvider(home))


async def test_notes_are_said_once_with_the_tasks_they_are_about(tmp_path: Path, home: Path) -> None:
    for name in "abcde":
        task = write_task(tmp_path / "tasks", name)
        (task / "task.toml").write_text(f'[task]\nname = "t/{name}"\n')
    heard = Heard()
    await start(plan_of(tmp_path, harness="nop", samples=2), heard, provider=LocalProvider(home))
    base = [note for note in heard.notes if "the image host takes the place" in note]
    said = "the image host takes the place of debian:bookworm-slim, which the task names"
    assert base == [f"{said} (5 tasks: t/a, t/b, t/c and 2 more)"]
    assert sum("does not say what network" in note for note in heard.notes) == 1


async def test_a_limit_takes_the_first_tasks_and_stays_with_the_run(tmp_path: Path, home: Path) -> None:
    for name in "abc":
        write_task(tmp_path / "tasks", name, toml='workdir = "/etc/passwd"\n')
    run = tmp_path / "runs" / "r"
    await start(plan_of(tmp_path, limit=2, retries=0), Heard(), provider=LocalProvider(home))
    await resume(run, Heard(), provider=LocalProvider(home), sleep=Naps())
    assert slots_of(run) == [("t/a", 0), ("t/b", 0)]


async def test_relative_paths_of_a_plan_are_good_from_anywhere(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks", "a", toml='workdir = "/etc/passwd"\n')
    (tmp_path / "scripts.json").write_text(json.dumps({"t/a": [[{"content": "no"}]]}))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tmp_path, paths=(Path("tasks"),), harness="scripted", options={"script": "scripts.json"}, retries=0)
    await start(plan, Heard(), provider=LocalProvider(home))
    monkeypatch.chdir("/")
    outcome = await resume(tmp_path / "runs" / "r", Heard(), provider=LocalProvider(home))
    assert outcome.recorded == 1
