"""A task directory as a Task: its hooks make the sandbox ready, stage tests/ and run tests/test.sh."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from forkyard.errors import SandboxError
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.secrets import Secrets
from forkyard.task.data import TaskData
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.healthcheck import wait_until_healthy
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.places import written_at
from forkyard.task.directory.reward import Verdict
from forkyard.task.directory.schema import Networked, TaskToml
from forkyard.task.directory.variables import Variables
from forkyard.task.directory.verifier import NOTHING, ROOT, SYSTEM_PATH, TestRun, facts_of, stage, verify
from forkyard.task.task import Task
from forkyard.trace import Status, Trace
from forkyard.values import printable, tail

_MAKE_DIRECTORIES = """
mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 755 /logs && chmod 777 /logs/*/
"""


class DirectoryTask(Task[TaskData]):
    """A task in the task directory format. Made by `load_task`, which has checked everything.

    The deadline of the script is `data.timeout.scoring`; it covers the script alone, so a caller that puts its own
    deadline around `score` leaves room for moving files.
    """

    NEEDS_CONTAINER = True

    def __init__(
        self,
        data: TaskData,
        toml: TaskToml,
        files: TaskFiles,
        variables: Variables,
        notes: tuple[str, ...] = (),
        flaw: str | None = None,
        lines: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(data)
        self.toml = toml
        self.files = files
        self._variables = variables
        self._notes = notes
        self._lines = lines  # of the keys of task.toml
        self._flaw = flaw  # what is wrong with the first line of tests/test.sh

    @property
    def key(self) -> str:
        """The digest: where the directory lies and what else is in the set does not matter."""
        return self.digest

    @property
    def digest(self) -> str:
        """The format's digest of the directory."""
        return self.files.digest

    def where(self, field: str) -> str:
        """The file, line and key that the field was read from."""
        return written_at(field, self.files.root, self.toml, self._lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before trusting its results, one sentence each."""
        return self._notes

    @property
    def build_context(self) -> Path | None:
        """environment/ when it holds a Dockerfile and no image is named."""
        directory = self.files.root / "environment"
        return directory if self.data.image is None and (directory / "Dockerfile").is_file() else None

    @property
    def build_seconds(self) -> float:
        """`[environment] build_timeout_sec`."""
        return self.toml.environment.build_timeout_sec

    @property
    def needs(self) -> frozenset[Feature]:
        """As for any task, and users when the verifier has its own."""
        own_user = self.toml.verifier.user not in (None, "root", "0")
        return super().needs | ({Feature.USERS} if own_user else set())

    @property
    def setup_network(self) -> Network | None:
        """`[environment]`'s, where `[agent]` says another."""
        return self._network_in(self.toml.environment)

    @property
    def verifier_network(self) -> Network | None:
        """`[verifier]`'s, or else `[environment]`'s, where `[agent]` says another."""
        return self._network_in(self.toml.verifier)

    def _network_in(self, phase: Networked) -> Network | None:
        if self.toml.network is None:
            return None
        network = TaskData(network_allow=self.toml.hosts_of(phase)).network
        return None if network == self.network else network

    @property
    def solution(self) -> Path | None:
        """solution/ when it holds solve.sh."""
        directory = self.files.root / "solution"
        return directory if (directory / "solve.sh").is_file() else None

    def runtime_env(self) -> Mapping[str, str]:
        """`[environment.env]`."""
        return self._variables.environment

    def solution_env(self) -> Mapping[str, str]:
        """`[solution.env]`."""
        return self._variables.solution

    @property
    def secrets(self) -> Secrets:
        """The values that the host's variables gave to templates."""
        return self._variables.secrets

    async def setup(self, runtime: Sandbox) -> None:
        """Make the format's directories, bring files beside a named image, and wait until the sandbox is healthy."""
        workdir = self.data.workdir or "."
        await runtime.push(NOTHING, workdir)
        result = await runtime.run(_MAKE_DIRECTORIES, SYSTEM_PATH, cwd="/", user=ROOT)
        if not result.ok:
            output = printable(tail(result.stderr.strip(), 500))
            raise SandboxError(f"/logs could not be made (exit code {result.exit_code}): {output}")
        directory = self.files.root / "environment"
        if self.data.image and directory.is_dir() and not (directory / "Dockerfile").is_file():
            archive = await asyncio.to_thread(self.files.pack, "environment")
            await runtime.push(archive, workdir)
        if check := self.toml.environment.healthcheck:
            await wait_until_healthy(runtime, check, self.runtime_env())

    async def stage_verifier(self, trace: Trace, runtime: Sandbox) -> None:
        """Put tests/ at /tests in the place of whatever is there; the one door for hidden files.

        When the sandbox prevents it, the trace is settled as INDETERMINATE and `score` has nothing left to do.
        """
        archive = await asyncio.to_thread(self.files.pack, "tests", "tests", self.files.left_out())
        if verdict := await stage(runtime, archive, self.data.timeout.scoring):
            _record(trace, verdict)
            trace.verifier.update(facts_of(verdict))

    async def score(self, trace: Trace, runtime: Sandbox | None = None) -> None:
        """Run tests/test.sh as staged, record its rewards and metrics, and settle the trace's status."""
        if trace.verifier.get("code") == "unusable_sandbox":
            return
        if runtime is None:
            trace.settle(Status.INDETERMINATE, "graded without a sandbox, which tests/test.sh needs")
            return
        run = TestRun(
            timeout=self.data.timeout.scoring,
            env={**self._variables.environment, **self._variables.verifier},
            user=self.toml.verifier.user,
            workdir=self.data.workdir,
            flaw=self._flaw,
            secrets=self._variables.secrets,
        )
        verdict, facts = await verify(runtime, run)
        trace.verifier.update(facts)
        _record(trace, verdict)


def _record(trace: Trace, verdict: Verdict) -> None:
    if verdict.primary is not None:
        trace.record_reward("reward", verdict.primary)
    elif verdict.status is not Status.SCORED:
        trace.rewards["reward"] = None
    trace.record_metrics(verdict.metrics)
    trace.settle(verdict.status, verdict.reason)
