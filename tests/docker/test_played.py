"""Runs on Docker as users start them: the env API's command line, task directories, programs that ask a model."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import forkyard as vf
from benchmarks.dockerd import Docker
from forkyard.errors import ConfigError
from forkyard.run import Plan
from forkyard.run.prepare import prepared
from forkyard.sandbox import Feature
from forkyard.sandbox.docker import DockerProvider
from tests.docker.parts import containers
from tests.env.parts import answering, play, roles
from tests.env.test_model_routes import TASK, Inside
from tests.model.provider import reply
from tests.run.parts import agent_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/envs/code_task.py"
CASES = ROOT / "tests/cases/tasks"
SEED = ("--env.id", "isolated-verifier", "--env.agent.runtime.type", "docker")
PLAYED = ("hack-path-separate", "hack-planted-reward", "reward-json-wins", "separate-declared-only")


class Elsewhere(vf.LocalProvider):
    """A verifier's own provider, which knows whether it was closed."""

    opened: ClassVar[list[Elsewhere]] = []

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.closed = False
        self.opened.append(self)

    async def close(self) -> None:
        self.closed = True
        await super().close()


def started(engine: Docker, home: Path, *arguments: str, host: str = "") -> subprocess.Popen[str]:
    """The command line, in a process of its own."""
    own = {"FORKYARD_HOME": str(home), "DOCKER_HOST": host or engine.address, "PYTHONPATH": str(EXAMPLE.parent)}
    return subprocess.Popen(
        [sys.executable, "-m", "forkyard.cli", *arguments],
        env={**os.environ, **own},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(place: Path) -> list[dict[str, Any]]:
    """The lines of the one run in a directory."""
    (found,) = place.glob("*/traces.jsonl")
    return [json.loads(line) for line in found.read_text().splitlines()]


def outcomes(found: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {one["task"].removeprefix("cases/"): {"status": one["status"], "reward": one["reward"]} for one in found}


@pytest.mark.slow
def test_the_env_apis_command_line_plays_on_docker_and_no_poison_changes_the_score(
    engine: Docker, python_image: str, tmp_path: Path
) -> None:
    processes = {}
    for name, command in runpy.run_path(str(EXAMPLE))["AGENTS"].items():
        (home := tmp_path / name).mkdir()
        harness = ("--env.agent.harness.id", "code_task:Shell", "--env.agent.harness.command", command)
        processes[name] = started(engine, home, "eval", str(EXAMPLE), *SEED, *harness)
    ended = {name: (process.communicate(timeout=200)[1], process) for name, process in processes.items()}
    for name, (said, process) in ended.items():
        (record,) = records(tmp_path / name / "runs")
        assert (record["status"], record["reward"]) == ("SCORED", float(name == "solves")), (said, record["reason"])
        assert (record["provider"], record["verifier"]["mode"]) == ("docker", "separate")
        assert process.returncode == 0, said
    assert containers(engine) == []


@pytest.mark.slow
def test_task_directories_reach_their_outcomes_on_docker(engine: Docker, debian_image: str, tmp_path: Path) -> None:
    tasks = [str(CASES / name) for name in PLAYED]
    _, said = started(
        engine, tmp_path, "run", *tasks, "-a", "oracle", "-e", "docker", "--unbounded", "-n", "4"
    ).communicate(timeout=300)
    expected = {name: json.loads((CASES / name / "expected.json").read_text())["oracle"] for name in PLAYED}
    assert outcomes(records(tmp_path / "runs")) == expected, said
    assert containers(engine) == []


@pytest.mark.slow
def test_the_case_of_several_containers_reaches_its_outcome(engine: Docker, debian_image: str, tmp_path: Path) -> None:
    with_compose(engine, tmp_path)
    case = CASES / "compose-sidecar"
    _, said = started(engine, tmp_path, "run", str(case), "-a", "oracle", "-e", "docker", "--unbounded").communicate(
        timeout=300
    )
    (record,) = records(tmp_path / "runs")
    assert outcomes([record]) == {"compose-sidecar": {"status": "SCORED", "reward": 1.0}}, (said, record["reason"])
    assert record["verifier"]["output_tail"] == '{"hits": 3}'
    assert containers(engine) == []


@pytest.mark.slow
def test_a_task_of_several_containers_is_refused_where_there_are_none(engine: Docker, tmp_path: Path) -> None:
    case = str(CASES / "compose-sidecar")
    ended = {
        name: (started(engine, tmp_path, "run", case, "-a", "oracle", "--unbounded", *options, **own), said)
        for name, options, own, said in (
            ("elsewhere", ("-e", "local", "--base", "host"), {}, "needs compose"),
            ("no Docker", ("-e", "docker"), {"host": f"unix://{tmp_path}/none.sock"}, "apt-get install docker.io"),
            ("forked", ("-e", "docker", "--verifier", "forked"), {}, "has no forks"),
        )
    }
    for name, (process, said) in ended.items():
        _, told = process.communicate(timeout=100)
        assert (process.returncode, said in " ".join(told.split())) == (1, True), (name, told)
    assert not (tmp_path / "runs").exists()


def with_compose(engine: Docker, home: Path) -> None:
    if Feature.COMPOSE not in DockerProvider(home / "asked", engine.address).features:
        pytest.skip("there is no program for compose (apt-get install docker-compose)")


def plan(tmp_path: Path, **fields: Any) -> Plan:
    return Plan(**{"out": tmp_path / "runs", "agent": agent_of("nop", provider="docker"), **fields})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base": "host"}, r"--base: the provider docker has no image host"),
        ({"env_config": {"agent": {"runtime": {"image": "host"}}}}, r"no image host.*--base IMAGE.*runtime\.image"),
        ({"env_config": {"agent": {"runtime": {"image": "no/such:1"}}}}, r"no image 'no/such:1'.*runtime\.image"),
    ],
    ids=["base", "the agent's", "one that is not there"],
)
async def test_an_image_that_docker_cannot_have_is_told_before_anything_starts(
    engine: Docker, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        async with prepared(
            plan(tmp_path, paths=(EXAMPLE,), **fields), DockerProvider(tmp_path / "home", engine.address)
        ):
            pass


@pytest.mark.asyncio(loop_scope="module")
async def test_a_verifier_elsewhere_has_images_of_its_own_provider_and_a_refusal_closes_it(
    engine: Docker, python_image: str, tmp_path: Path
) -> None:
    runtime = {"type": f"{__name__}:Elsewhere", "home": str(tmp_path / "verifiers")}
    fields: dict[str, Any] = {"env": "isolated-verifier", "env_config": {"verifier": {"runtime": runtime}}}
    wanted = plan(tmp_path, paths=(EXAMPLE,), **fields)
    async with prepared(wanted, DockerProvider(tmp_path / "home", engine.address)) as ready:
        (trace,) = (await ready.play(ready.tasks[0], vf.Slot(), ready.seats, lambda *_: None)).traces
        assert (trace.status, trace.reward, trace.sandbox_provider) == (vf.Status.SCORED, 0.0, "docker"), trace.reason
        assert [each.closed for each in Elsewhere.opened] == [False]
    with pytest.raises(ConfigError):
        async with prepared(
            wanted.model_copy(update={"base": "no/such:1"}), DockerProvider(tmp_path / "home", engine.address)
        ):
            pass
    assert [each.closed for each in Elsewhere.opened] == [True, True]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_in_a_container_without_a_network_asks_its_model(
    docker: DockerProvider, python_image: str
) -> None:
    async def image_for(task: vf.Task) -> str:
        return python_image

    async with answering(reply("an answer")) as (gateway, _):
        seat = vf.Seat(Inside(), docker, image_for, gateway=gateway, model="fake")
        (trace,) = (await play(vf.SingleAgentEnv(), TASK, {"agent": seat})).traces
    assert trace.ok, trace.reason
    assert roles(trace.messages) == ["user", "assistant"] and trace.last_reply == "an answer"
