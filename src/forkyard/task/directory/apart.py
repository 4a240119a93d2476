"""A task directory as the sandbox of a separate verifier is made from it.

| `[verifier.environment]`, or else `[environment]` | the sandbox | the tests |
|---|---|---|
| names no image, and there is tests/docker-compose.yaml | is the service main of that | are in it |
| names no image, and there is tests/Dockerfile | is built from tests/ | are in it |
| names no image | is built as the agent's was | are brought |
| names the agent's image | starts from that | are brought |
| names another image | starts from that | are in it |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from forkyard.errors import SandboxError, TaskError
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.task.data import TaskData
from forkyard.task.directory.contradictions import VERIFIER_COMPOSE_FILE
from forkyard.task.directory.healthcheck import wait_until_healthy
from forkyard.task.directory.placing import TESTS, make_directories
from forkyard.task.directory.resources import resources_of
from forkyard.task.directory.task import DirectoryTask
from forkyard.task.directory.verifier import ROOT, SYSTEM_PATH
from forkyard.task.machine import Networks, Origin
from forkyard.trace import Trace

_CHMOD_SECONDS = 60.0


class NoTestsError(TaskError):
    """The verifier's image lacks the tests that it was to hold."""

    lasting: ClassVar[bool] = True


class ApartTask(DirectoryTask):
    """Made by `DirectoryTask.for_verifier`."""

    def __init__(self, task: DirectoryTask) -> None:
        self._environment = own = task.toml.verifier_environment
        data = task.with_data(image=own.docker_image, workdir=own.workdir, resources=resources_of(own)).data
        super().__init__(data, task.toml, task.files, task._variables, task._notes, task.stages, task._lines)
        self._given = task._given

    def for_verifier(self) -> DirectoryTask:
        """Itself."""
        return self

    @property
    def origin(self) -> Origin:
        """tests/ when no image is named and it holds a compose file or a Dockerfile, else environment/.

        The agent's services are not the verifier's.
        """
        own, tests = self._environment, self.files.root / "tests"
        compose = tests if own.docker_image is None and (self.files.root / VERIFIER_COMPOSE_FILE).is_file() else None
        directory = tests if self._is_built_of_tests else self.files.root / "environment"
        return self._made_from(compose, own.docker_image, directory, own.build_timeout_sec)

    @property
    def needs(self) -> frozenset[Feature]:
        """As the task's, but for its services."""
        own = {Feature.COMPOSE} if self.origin.compose is not None else set()
        return (super().needs - {Feature.COMPOSE}) | own

    @property
    def _is_built_of_tests(self) -> bool:
        return self._environment.docker_image is None and (self.files.root / "tests" / "Dockerfile").is_file()

    @property
    def network(self) -> Network | None:
        """`[verifier]`'s, or else its own table's; None when nothing says."""
        if self.toml.network is None and self._environment is self.toml.environment:
            return None
        return TaskData(network_allow=self.toml.verifier_hosts).network

    @property
    def networks(self) -> Networks:
        """One for all of it."""
        return Networks(self.network)

    def runtime_env(self) -> Mapping[str, str]:
        """`env` of its own table."""
        return self._variables.apart

    async def setup(self, runtime: Sandbox, trace: Trace | None = None) -> None:
        """Make the format's directories and wait until the sandbox is healthy."""
        await make_directories(runtime, self.data.workdir or ".")
        if check := self._environment.healthcheck:
            await wait_until_healthy(runtime, check, self.runtime_env())

    @property
    def _image_told(self) -> str:
        if self.origin.compose is not None:
            return f"the service main of {VERIFIER_COMPOSE_FILE}"
        return "tests/Dockerfile" if self._is_built_of_tests else f"the image {self._environment.docker_image}"

    @property
    def _brings_tests(self) -> bool:
        same_image = self._environment.docker_image == self.toml.environment.docker_image
        return same_image and not self._is_built_of_tests and self.origin.compose is None

    async def stage_verifier(self, trace: Trace, runtime: Sandbox) -> None:
        """Put tests/ at /tests, unless the image is to hold them: then the script is made executable.

        Raises NoTestsError when the image does not hold it.
        """
        if self._brings_tests:
            await super().stage_verifier(trace, runtime)
            return
        try:
            await runtime.read(f"{TESTS}/test.sh")
        except (OSError, SandboxError) as err:
            raise NoTestsError(
                f"{self._image_told} has no {TESTS}/test.sh, and a verifier's own image has to hold it: "
                "write `COPY . /tests/` into the Dockerfile it is built from"
            ) from err
        # COPY keeps the mode, and a checkout may have lost it. What cannot be done is told when the script is run.
        await runtime.run(["chmod", "+x", f"{TESTS}/test.sh"], SYSTEM_PATH, cwd="/", user=ROOT, timeout=_CHMOD_SECONDS)
