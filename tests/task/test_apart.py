"""What the sandbox of a separate verifier is made of, for a task directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import forkyard as vf
from forkyard.env.checks import seat_problems
from forkyard.errors import ConfigError
from forkyard.harness import NopHarness
from forkyard.sandbox import NO_NETWORK, PUBLIC, Feature, Network, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from forkyard.task import invoke, load_task
from forkyard.trace import Status, Trace
from tests.env.parts import host_image
from tests.task.conftest import MakeTask

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
OWN = "[verifier.environment]\n"


@pytest.mark.parametrize(
    ("text", "files", "context", "image"),
    [
        (SEPARATE, {"tests/Dockerfile": "FROM a"}, "tests", None),
        (SEPARATE, {}, "environment", None),
        (SEPARATE + OWN + "cpus = 1\n", {"tests/Dockerfile": "FROM a"}, "tests", None),
        (OWN + 'docker_image = "b:1"\n', {"tests/Dockerfile": "FROM a"}, None, "b:1"),
        (SEPARATE + '[environment]\ndocker_image = "b:1"\n', {}, None, "b:1"),
        (
            SEPARATE + '[environment]\ndocker_image = "b:1"\n' + OWN + "cpus = 1\n",
            {"tests/Dockerfile": "FROM a"},
            "tests",
            None,
        ),
    ],
)
def test_m2_m3_which_image_it_starts_from(
    make_task: MakeTask, text: str, files: dict[str, str], context: str | None, image: str | None
) -> None:
    task = load_task(make_task({"task.toml": text, **files}), {})
    apart = task.for_verifier()
    assert task.data.verifier == "separate"
    assert apart.origin.build == (context and task.files.root / context)
    assert apart.data.image == image
    assert (apart.name, apart.digest, apart.for_verifier()) == (task.name, task.digest, apart)


COMPOSE = "tests/docker-compose.yaml"


@pytest.mark.parametrize(
    ("text", "files", "directory", "context"),
    [
        (SEPARATE, {COMPOSE: "services: {main: {build: .}, db: {image: x}}"}, "tests", None),
        (SEPARATE, {COMPOSE: "services: {db: {image: x}}", "tests/Dockerfile": "FROM a"}, "tests", "tests"),
        (OWN + 'docker_image = "b:1"\n', {COMPOSE: "services: {main: {build: .}}"}, None, None),
    ],
    ids=["of the file", "of tests/Dockerfile", "an image is named"],
)
def test_a_verifier_may_have_services_of_its_own(
    make_task: MakeTask, text: str, files: dict[str, str], directory: str | None, context: str | None
) -> None:
    task = load_task(make_task({"task.toml": text, **files}), {})
    apart = task.for_verifier()
    assert apart.origin.compose == (directory and task.files.root / directory)
    assert apart.origin.build == (context and task.files.root / context)
    assert (Feature.COMPOSE in apart.needs, Feature.COMPOSE in task.needs) == (directory is not None, False)
    noted = "tests/docker-compose.yaml is not brought up when an image is named for the verifier"
    assert (noted in task.notes) == (directory is None)


def test_the_services_of_a_verifier_are_not_those_of_its_agent(make_task: MakeTask) -> None:
    files = {"environment/docker-compose.yaml": "services: {main: {image: x}}", "tests/Dockerfile": "FROM a"}
    apart = load_task(make_task({"task.toml": SEPARATE, **files}), {}).for_verifier()
    assert (apart.origin.compose, Feature.COMPOSE in apart.needs) == (None, False)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("services: [", "is no YAML"),
        ("services: {db: {image: x}}", "has neither image nor build for the service 'main'"),
    ],
)
def test_what_the_verifiers_compose_file_does_not_hold_is_told(said: str, expected: str, make_task: MakeTask) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_task(make_task({"task.toml": SEPARATE, COMPOSE: said}), {})
    assert load_task(make_task({COMPOSE: said}, name="shared"), {}).notes[0].startswith(f"{COMPOSE} is not brought up")


async def test_it_is_refused_where_there_are_no_services(make_task: MakeTask, provider: LocalProvider) -> None:
    task = load_task(make_task({"task.toml": SEPARATE, COMPOSE: "services: {main: {build: .}}"}), {})
    (told,) = seat_problems(task, vf.Seat(NopHarness(), provider, host_image))
    assert "its separate verifier needs compose, which the provider local does not promise" in told


def test_its_own_table_says_where_it_works_with_what(make_task: MakeTask) -> None:
    text = (
        SEPARATE
        + '[environment]\nworkdir = "/app"\nmemory_mb = 512\nenv = {A = "1"}\n'
        + OWN
        + 'workdir = "/check"\nmemory_mb = 1024\nbuild_timeout_sec = 5.0\nenv = {A = "${HOST_A}"}\n'
    )
    task = load_task(make_task({"task.toml": text}), {"HOST_A": "a secret of the host"})
    apart = task.for_verifier()
    assert (task.data.workdir, apart.data.workdir) == ("/app", "/check")
    assert (task.data.resources.memory, apart.data.resources.memory) == (0.5, 1.0)
    assert (task.runtime_env(), apart.runtime_env()) == ({"A": "1"}, {"A": "a secret of the host"})
    assert apart.origin.seconds == 5.0
    assert task.secrets.hide("a secret of the host") == "[redacted]"


@pytest.mark.parametrize(
    ("text", "agents", "verifiers"),
    [
        (SEPARATE, None, None),
        ('[environment]\nnetwork_mode = "no-network"\n' + SEPARATE, NO_NETWORK, NO_NETWORK),
        ('[environment]\nnetwork_mode = "no-network"\n' + SEPARATE + 'network_mode = "public"\n', NO_NETWORK, PUBLIC),
        ('[environment]\nnetwork_mode = "no-network"\n' + OWN + 'network_mode = "public"\n', NO_NETWORK, PUBLIC),
        ('[environment]\nnetwork_mode = "public"\n' + OWN + "cpus = 1\n", PUBLIC, NO_NETWORK),
        (
            '[environment]\nnetwork_mode = "public"\n' + OWN + 'network_mode = "allowlist"\nallowed_hosts = ["a.b"]\n',
            PUBLIC,
            Network("allowlist", ("a.b",)),
        ),
    ],
)
def test_each_reaches_what_its_own_table_says(
    make_task: MakeTask, text: str, agents: Network | None, verifiers: Network | None
) -> None:
    task = load_task(make_task({"task.toml": text}), {})
    assert (task.network, task.for_verifier().network) == (agents, verifiers)


def test_artifacts_are_declared_once_and_none_is_required(make_task: MakeTask) -> None:
    text = 'artifacts = ["/app/out/a.txt", "/app/out", "/app/out/", {source = "log", exclude = ["*.o"]}]\n' + SEPARATE
    task = load_task(make_task({"task.toml": text}), {})
    assert [artifact.source for artifact in task.data.artifacts] == ["/app/out/a.txt", "/app/out", "log"]
    assert not any(artifact.required for artifact in task.data.artifacts)
    assert task.notes == (
        "artifacts: the places 'app/out/a.txt' and 'app/out' lie within each other; the first wins",
        "artifacts: two entries go to 'app/out'; the first one wins",
    )


def test_a_task_in_python_is_its_own(make_task: MakeTask) -> None:
    from forkyard.task import Task, TaskData

    task = Task(TaskData(name="t"))
    assert task.for_verifier() is task


async def test_a_script_that_the_image_brings_without_its_exec_bit_is_given_it(
    make_task: MakeTask, tmp_path: Path
) -> None:
    task = load_task(make_task({"task.toml": SEPARATE, "tests/Dockerfile": "FROM a\nCOPY . /tests/\n"}), {})
    trace = Trace()
    async with LocalProvider(tmp_path / "home") as provider:
        sandbox = await provider.create(SandboxSpec(image="host"))
        try:
            await sandbox.write("/tests/test.sh", b"#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n", 0o644)
            await invoke(task.for_verifier().stage_verifier, trace=trace, runtime=sandbox)
            await task.for_verifier().score(trace, sandbox)
        finally:
            await sandbox.close()
    assert (trace.status, trace.reward) == (Status.SCORED, 1.0)
