"""What services beside an agent leave, when they live on and when they have died; and what `main` is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import forkyard as vf
from benchmarks.dockerd import Docker
from forkyard.env import agent_at
from forkyard.harness import OracleHarness
from forkyard.run.images import Images
from forkyard.sandbox import Feature
from forkyard.sandbox.docker import DockerProvider
from forkyard.task import load_task
from tests.docker.parts import BASE, containers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

TOML = """
artifacts = [
    "/app/own", {source = "/srv/seen", service = "api"}, {source = "/srv/left", service = "gone"},
    {source = "/app/own", service = "api"},
]
[[verifier.collect]]
command = "id -un > /app/own"
user = "worker"
[[verifier.collect]]
service = "api"
command = "pwd > /srv/seen; echo $OURS >> /srv/seen; cat /shared/said >> /srv/seen"
[[verifier.collect]]
service = "gone"
command = "true"
"""
COMPOSE = f"""
services:
  main: {{build: ., image: "${{MAIN_IMAGE_NAME}}", volumes: ["shared:/shared"]}}
  api: {{image: "{BASE}", command: sleep 600, working_dir: /srv, volumes: ["shared:/shared"]}}
  gone: {{image: "{BASE}", command: "true"}}
volumes: {{shared: }}
"""
FILES = {
    "instruction.md": "Say it.",
    "environment/Dockerfile": f"FROM {BASE}\nRUN mkdir -p /app && chmod 777 /app\nWORKDIR /app\n",
    "environment/docker-compose.yaml": COMPOSE,
    "solution/solve.sh": "#!/bin/bash\necho said > /shared/said\n",
}
SHARED = """#!/bin/bash
cat /shared/said || exit
(exec 3<>/dev/tcp/api/9) 2>&1 | grep -q refused && echo 1 > /logs/verifier/reward.txt
"""
APART = "#!/bin/bash\ncat /app/own /srv/seen; echo 1 > /logs/verifier/reward.txt\n"


def written(root: Path, files: Mapping[str, str]) -> vf.Task:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return load_task(root, {})


@pytest.fixture(autouse=True)
def program(docker: DockerProvider) -> None:
    if Feature.COMPOSE not in docker.features:
        pytest.skip("there is no program for compose (apt-get install docker-compose)")


@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_each_service_leaves_what_it_has_and_one_that_died_is_on_record(
    docker: DockerProvider, engine: Docker, tmp_path: Path, mode: str
) -> None:
    toml = TOML + (f'[verifier]\nenvironment_mode = "{mode}"\n')
    test = APART if mode == "separate" else SHARED
    task = written(tmp_path / "task", {**FILES, "task.toml": toml, "tests/test.sh": test})
    images = Images(docker, None)
    try:
        seat = vf.Seat(OracleHarness(), docker, images.image_for, keep_logs_in=tmp_path / "kept")
        (trace,) = (await vf.SingleAgentEnv().run_episode(task, vf.Slot("test"), {"agent": seat})).traces
    finally:
        await images.close()
    assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0), (trace.reason, trace.verifier)
    if mode == "separate":
        assert trace.verifier["output_tail"] == "worker\n/srv\n\nsaid\n"
    assert [failed["service"] for failed in trace.verifier["failed_hooks"]] == ["gone"]
    assert list(trace.verifier["failed_artifacts"]) == ["/srv/left"]
    kept = tmp_path / "kept" / trace.id / "artifacts"
    assert (kept / "srv/seen").read_text() == "/srv\n\nsaid\n" and (kept / "app/own").read_text() == "worker\n"
    found = {entry["source"]: entry["status"] for entry in json.loads((kept / "manifest.json").read_text())}
    assert (found["/srv/seen"], found["/srv/left"]) == ("ok", "failed")
    assert containers(engine) == []


async def test_an_agent_provides_the_whole_project_and_closes_it(
    docker: DockerProvider, engine: Docker, tmp_path: Path
) -> None:
    task = written(tmp_path / "task", {**FILES, "task.toml": "", "tests/test.sh": SHARED})
    images = Images(docker, None)
    agent = agent_at(vf.Seat(OracleHarness(), docker, images.image_for))
    async with agent.provision(task) as box:
        trace = await agent.run(task, runtime=box)
        assert (trace.status, trace.reward) == (vf.Status.SCORED, 1.0), trace.reason
        assert (await box.run("cat /shared/said")).stdout == "said\n"
    await images.close()
    assert containers(engine) == []
