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


async def test_a12_a_hook_of_a_service_has_the_services_place_and_user_unless_it_says_another(
    docker: DockerProvider, tmp_path: Path
) -> None:
    hooks = "".join(
        f"[[verifier.collect]]\nservice = 'api'\ncommand = 'echo $(pwd) $(id -u) $OF_MAIN > /tmp/{name}'\n{user}"
        for name, user in (("own", ""), ("other", "user = '4321'\n"))
    )
    files = {
        "task.toml": 'artifacts = [{source = "/tmp/own", service = "api"}, {source = "/tmp/other", service = "api"}]\n'
        f'[environment]\nworkdir = "/app"\nenv = {{OF_MAIN = "main"}}\n[agent]\nuser = "root"\n{hooks}',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": f"FROM {BASE}\n",
        "environment/docker-compose.yaml": "services:\n  main: {}\n  api:\n"
        f'    image: {BASE}\n    working_dir: /srv\n    user: "1234"\n    command: ["sleep", "infinity"]\n',
        "solution/solve.sh": "#!/bin/bash\n:\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    trace = await played(docker, load_task(tmp_path / "task", {}), tmp_path / "kept")
    assert trace.reward == 1.0, trace.reason
    kept = tmp_path / "kept" / trace.id / "artifacts/tmp"
    assert (kept / "own").read_text() == "/srv 1234\n", trace.verifier
    assert (kept / "other").read_text() == "/srv 4321\n"


async def test_s11_a_services_artifacts_are_collected_in_each_step(docker: DockerProvider, tmp_path: Path) -> None:
    files = {
        "task.toml": 'artifacts = [{source = "/tmp/all", service = "api"}]\n'
        '[environment]\nworkdir = "/app"\n[[verifier.collect]]\nservice = "api"\n'
        'command = "echo x >> /tmp/all; cp /tmp/all /tmp/own"\n'
        '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nartifacts = [{source = "/tmp/own", service = "api"}]\n',
        "steps/one/instruction.md": "Do it.\n",
        "steps/two/instruction.md": "Do it.\n",
        "environment/Dockerfile": f"FROM {BASE}\n",
        "environment/docker-compose.yaml": "services:\n  main: {}\n  api:\n"
        f'    image: {BASE}\n    command: ["sleep", "infinity"]\n',
        "solution/solve.sh": "#!/bin/bash\n:\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    trace = await played(docker, load_task(tmp_path / "task", {}), tmp_path / "kept")
    assert trace.reward == 1.0, trace.reason
    kept = tmp_path / "kept" / trace.id / "steps"
    found = {name: (kept / name / "artifacts/tmp/all").read_text() for name in ("one", "two")}
    assert found == {"one": "x\n", "two": "x\nx\n"}, trace.verifier
    assert [(kept / name / "artifacts/tmp/own").exists() for name in ("one", "two")] == [False, True]


async def test_a_separate_verifier_is_brought_up_with_services_of_its_own(
    docker: DockerProvider, engine: Docker, tmp_path: Path
) -> None:
    files = {
        "task.toml": 'artifacts = ["/app/answer"]\n[environment]\nworkdir = "/app"\n[verifier]\n'
        'environment_mode = "separate"\n',
        "instruction.md": "Answer.\n",
        "environment/Dockerfile": f"FROM {BASE}\n",
        "solution/solve.sh": "#!/bin/bash\necho 42 > /app/answer\n",
        "tests/Dockerfile": f"FROM {BASE}\nCOPY . /tests/\n",
        "tests/docker-compose.yaml": f"services:\n  truth:\n    image: {BASE}\n"
        '    command: ["sh", "-c", "echo 42 > /shared/answer; sleep infinity"]\n    volumes: ["shared:/shared"]\n'
        '  main:\n    volumes: ["shared:/shared"]\nvolumes: {shared: {}}\n',
        "tests/test.sh": "#!/bin/bash\nwhile ! [ -s /shared/answer ]; do sleep 0.05; done\n"
        '[ "$(cat /app/answer)" = "$(cat /shared/answer)" ] && echo 1 > /logs/verifier/reward.txt\n',
    }
    for name, text in files.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    trace = await played(docker, load_task(tmp_path / "task", {}), tmp_path / "kept")
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0), (trace.reason, trace.verifier)
    assert [each["Names"] for each in containers(engine)] == []


@pytest.mark.parametrize("mode", ["forked"])
async def test_a_task_of_several_containers_has_no_forks(mode: VerifierMode, local: LocalProvider) -> None:
    seat = vf.Seat(OracleHarness(), local, host_image, verifier=mode)
    task = load_task(CASE, {})
    assert any("has no forks" in problem for problem in SingleAgentEnv().problems(task, {"agent": seat}))
    assert Feature.COMPOSE in task.needs and Feature.COMPOSE not in task.for_verifier().needs
