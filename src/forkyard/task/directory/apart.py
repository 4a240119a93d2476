"""A task directory as the sandbox of a separate verifier is made from it.

| `[verifier.environment]`, or else `[environment]` | the sandbox | the tests |
|---|---|---|
| names no image, and there is tests/Dockerfile | is built from tests/ | are in it |
| names no image | is built as the agent's was | are brought |
| names the agent's image | starts from that | are brought |
| names another image | starts from that | are in it |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from forkyard.errors import SandboxError, TaskError
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.task.data import TaskData
from forkyard.task.directory.healthcheck import wait_until_healthy
from forkyard.task.directory.placing import TESTS, make_directories
from forkyard.task.directory.resources import resources_of
from forkyard.task.directory.task import DirectoryTask
from forkyard.task.directory.verifier import ROOT, SYSTEM_PATH
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
    def compose_directory(self) -> None:
        """A verifier's sandbox is one container."""

    @property
    def needs(self) -> frozenset[Feature]:
        """As the task's, but for its services."""
        return super().needs - {Feature.COMPOSE}

    @property
    def build_context(self) -> Path | None:
        """tests/ when it holds a Dockerfile, environment/ when not, and nothing when an image is named."""
        if self._environment.docker_image is not None:
            return None
        return self.files.root / "tests" if self._is_built_of_tests else super().build_context

    @property
    def _is_built_of_tests(self) -> bool:
        return self._environment.docker_image is None and (self.files.root / "tests" / "Dockerfile").is_file()

    @property
    def build_seconds(self) -> float:
        """`build_timeout_sec` of its own table."""
        return self._environment.build_timeout_sec

    @property
    def network(self) -> Network | None:
        """`[verifier]`'s, or else its own table's; None when nothing says."""
        if self.toml.network is None and self._environment is self.toml.environment:
            return None
        return TaskData(network_allow=self.toml.verifier_hosts).network

    @property
    def setup_network(self) -> Network | None:
        """None: one network for all of it."""
        return None

    @property
    def verifier_network(self) -> Network | None:
        """None: one network for all of it."""
        return None

    def runtime_env(self) -> Mapping[str, str]:
        """`env` of its own table."""
        return self._variables.apart

    async def setup(self, runtime: Sandbox, trace: Trace | None = None) -> None:
        """Make the format's directories and wait until the sandbox is healthy."""
        await make_directories(runtime, self.data.workdir or ".")
        if check := self._environment.healthcheck:
            await wait_until_healthy(runtime, check, self.runtime_env())

    @property
    def _brings_tests(self) -> bool:
        same_image = self._environment.docker_image == self.toml.environment.docker_image
        return same_image and not self._is_built_of_tests

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
            built = "tests/Dockerfile" if self._is_built_of_tests else f"the image {self._environment.docker_image}"
            raise NoTestsError(
                f"{built} has no {TESTS}/test.sh, and a verifier's own image has to hold it: "
                "write `COPY . /tests/` into the Dockerfile it is built from"
            ) from err
        # COPY keeps the mode, and a checkout may have lost it. What cannot be done is told when the script is run.
        await runtime.run(["chmod", "+x", f"{TESTS}/test.sh"], SYSTEM_PATH, cwd="/", user=ROOT, timeout=_CHMOD_SECONDS)
