"""Task directories of several containers, played to the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import forkyard as vf
from benchmarks.dockerd import Docker
from forkyard.env import SingleAgentEnv
from forkyard.harness import OracleHarness
from forkyard.run.images import Images
from forkyard.sandbox import Feature
from forkyard.sandbox.docker import DockerProvider
from forkyard.sandbox.local import LocalProvider
from forkyard.task import VerifierMode, load_task
from forkyard.trace import Status
from tests.docker.parts import BASE, containers
from tests.env.parts import host_image

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CASE = Path(__file__).parents[1] / "cases" / "tasks" / "compose-sidecar"


def case(root: Path, *, separate: bool = True) -> vf.Task:
    """The case, on the tests' own base."""
    shutil.copytree(CASE, root)
    for path in root.rglob("Dockerfile"):
        path.write_text(path.read_text().replace("debian:bookworm-slim", BASE))
    if not separate:
        toml = (root / "task.toml").read_text().partition("[verifier.environment]")
        hooks = toml[2].partition("[[verifier.collect]]")
        text = toml[0].replace('"separate"', '"shared"') + hooks[1] + hooks[2]
        (root / "task.toml").write_text(text)
        (root / "tests/test.sh").write_text("#!/bin/bash\ncat /tmp/stats.json; echo 1 > /logs/verifier/reward.txt\n")
    return load_task(root, {})


async def played(docker: DockerProvider, task: vf.Task, kept: Path) -> vf.Trace:
    if Feature.COMPOSE not in docker.features:
        pytest.skip("there is no program for compose (apt-get install docker-compose)")
    images = Images(docker, None)
    try:
        seat = vf.Seat(OracleHarness(), docker, images.image_for, keep_logs_in=kept)
        episode = await SingleAgentEnv().run_episode(task, vf.Slot("test"), {"agent": seat})
    finally:
        await images.close()
    return episode.traces[0]


async def test_a4_a11_the_verifier_gets_the_services_bytes_collected_when_main_has_stopped(
    docker: DockerProvider, engine: Docker, tmp_path: Path
) -> None:
    trace = await played(docker, case(tmp_path / "task"), tmp_path / "kept")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
    assert trace.verifier["output_tail"] == '{"hits": 3}'
    kept = tmp_path / "kept" / trace.id / "artifacts"
    assert (kept / "tmp/stats.json").read_text() == '{"hits": 3}'
    found = {entry["source"]: entry["service"] for entry in json.loads((kept / "manifest.json").read_text())}
    assert found == {"/tmp/stats.json": "api", "/logs/artifacts": None}
    assert [each["Names"] for each in containers(engine)] == []


async def test_a_shared_verifier_works_in_main_and_the_services_evidence_is_kept(
    docker: DockerProvider, tmp_path: Path
) -> None:
    trace = await played(docker, case(tmp_path / "task", separate=False), tmp_path / "kept")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), trace.reason
    assert trace.verifier["output_tail"] == '{"hits": 999}'
    assert (tmp_path / "kept" / trace.id / "artifacts/tmp/stats.json").read_text() == '{"hits": 3}'


@pytest.mark.parametrize("mode", ["forked"])
async def test_a_task_of_several_containers_has_no_forks(mode: VerifierMode, local: LocalProvider) -> None:
    seat = vf.Seat(OracleHarness(), local, host_image, verifier=mode)
    task = load_task(CASE, {})
    assert any("has no forks" in problem for problem in SingleAgentEnv().problems(task, {"agent": seat}))
    assert Feature.COMPOSE in task.needs and Feature.COMPOSE not in task.for_verifier().needs
