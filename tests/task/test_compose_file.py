"""What a task of several containers says in its compose file, as far as it is checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

import forkyard as vf
from forkyard.env.checks import seat_problems
from forkyard.errors import ConfigError
from forkyard.harness import Equipment, NopHarness, OracleHarness
from forkyard.sandbox.local import LocalProvider
from forkyard.task import load_task
from tests.env.parts import host_image
from tests.task.conftest import MakeTask

FILE = "environment/docker-compose.yaml"
API = "services: {api: {image: x}}"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


@pytest.mark.parametrize(
    ("files", "toml", "said"),
    [
        ({FILE: "services: ["}, "", "is no YAML"),
        ({FILE: "version: '3'"}, "", "no table `services`"),
        ({FILE: "- services"}, "", "no table `services`"),
        ({FILE: API, "environment/Dockerfile": None}, "", "neither image nor build for the service 'main'"),
        (
            {FILE: API},
            'artifacts = [{source = "/x", service = "db"}]',
            "line 1: artifacts[0].service = 'db' is no service",
        ),
        ({FILE: API}, '[[verifier.collect]]\ncommand = "x"\nservice = "db"', "which has main, api"),
        (
            {FILE: "services: {main: {image: x}}", "environment/Dockerfile": None},
            SEPARATE,
            "its own sandbox has no image to start from",
        ),
    ],
    ids=["no YAML", "no services", "a list", "no image", "artifact", "hook", "verifier"],
)
def test_what_the_file_does_not_hold_is_told_when_the_task_is_read(
    files: dict[str, str | None], toml: str, said: str, make_task: MakeTask
) -> None:
    with pytest.raises(ConfigError) as told:
        load_task(make_task({**files, "task.toml": toml}), {})
    assert any(said in problem for problem in told.value.problems), told.value.problems
    assert len(told.value.problems) == 1


@pytest.mark.parametrize(
    ("main", "brings"),
    [
        ("{}", False),
        ("{volumes: ['a:/a']}", False),
        ("{image: '${MAIN_IMAGE_NAME}'}", False),
        ("{image: debian}", True),
        ("{build: ., image: '${MAIN_IMAGE_NAME}'}", True),
    ],
)
def test_main_is_of_the_tasks_image_unless_the_file_says_another(main: str, brings: bool, make_task: MakeTask) -> None:
    task = load_task(make_task({FILE: f"services: {{main: {main}}}", "task.toml": SEPARATE}), {})
    assert task.origin.has_image is brings
    assert (task.origin.build is None) is brings
    assert task.for_verifier().origin.build == task.files.root / "environment"


class Installed(NopHarness):
    """One that has to be installed first."""

    name: ClassVar[str] = "installed"

    def equipment(self) -> Equipment | None:
        async def install(sandbox: vf.Sandbox) -> None:
            raise vf.HarnessError("it never comes to that")

        return Equipment("a program", install)


@pytest.mark.parametrize(
    ("toml", "fields", "said"),
    [
        ("", {"verifier": "forked"}, "has no forks"),
        ('[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"', {}, "the ways out"),
        ("", {"harness": Installed()}, "brings its own for the service main"),
    ],
    ids=["forks", "networks", "an agent to be installed"],
)
async def test_what_several_containers_cannot_do_is_told_before_anything_starts(
    toml: str, fields: Mapping[str, Any], said: str, make_task: MakeTask, local: LocalProvider
) -> None:
    task = load_task(make_task({FILE: "services: {main: {image: x}}", "task.toml": toml}), {})
    given = {"harness": OracleHarness(), "verifier": "shared", **fields}
    (problem,) = [
        each for each in seat_problems(task, vf.Seat(provider=local, image_for=host_image, **given)) if said in each
    ]
    assert problem
