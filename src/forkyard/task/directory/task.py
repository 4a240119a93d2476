"""A task directory as a Task: its hooks make the sandbox ready, stage tests/ and run tests/test.sh."""

from __future__ import annotations

import asyncio
import copy
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from forkyard.errors import ConfigError
from forkyard.sandbox import Feature, Network, Sandbox
from forkyard.sandbox.composefile import brings_image
from forkyard.secrets import Secrets
from forkyard.task.data import Artifact, TaskData
from forkyard.task.directory.artifacts import declared
from forkyard.task.directory.collecting import SCRIPT, Evidence, base_commit, make_ready
from forkyard.task.directory.contradictions import COMPOSE_FILE, COMPOSE_NAME, TaskSource
from forkyard.task.directory.files import TaskFiles
from forkyard.task.directory.healthcheck import wait_until_healthy
from forkyard.task.directory.judging import KEYS, asked_for, checked_overrides, judge_env, models_told, wants_model
from forkyard.task.directory.lines import Path as Key
from forkyard.task.directory.places import written_at
from forkyard.task.directory.placing import LOGS, TESTS, make_directories
from forkyard.task.directory.reward import Verdict
from forkyard.task.directory.schema import TaskToml
from forkyard.task.directory.stages import Stage
from forkyard.task.directory.table import Networked
from forkyard.task.directory.unsupported import machine_needs, refusals
from forkyard.task.directory.variables import Variables
from forkyard.task.directory.verifier import TestRun, facts_of, stage, verify
from forkyard.task.judges.desk import verifier_endpoint
from forkyard.task.machine import Networks, Origin
from forkyard.task.staging import Staging
from forkyard.task.task import Task
from forkyard.task.toolset import ToolServer
from forkyard.trace import Status, Trace

_ROOT = (None, "root", "0")


class DirectoryTask(Task[TaskData]):
    """A task in the task directory format. Made by `load_task`, which has checked everything.

    The deadline of the script is `data.timeout.scoring`; it covers the script alone, so a caller that puts its own
    deadline around `score` leaves room for moving files.
    """

    NEEDS_CONTAINER = True
    collects_what_it_can = True
    hidden_places = (TESTS, LOGS)

    def __init__(
        self,
        data: TaskData,
        toml: TaskToml,
        files: TaskFiles,
        variables: Variables,
        notes: tuple[str, ...] = (),
        stages: tuple[Stage, ...] = (),
        lines: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(data)
        self.toml = toml
        self.files = files
        self._variables = variables
        self._notes = notes
        self._lines = lines  # of the keys of task.toml
        self.stages = stages  # what is asked one after the other; one when there are no steps
        self._number = 0  # of the stage that this task is
        self._given: Mapping[str, str] = {}  # to the verifier, over all that the task says

    def _check_config(self) -> None:
        if any((self.config.judges, self.config.metrics, self.config.rewards)):
            raise ValueError("a task directory is graded by its tests/test.sh alone, not by judges or plugged rewards")

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

    def noted(self, *notes: str) -> Self:
        """A copy with more to know of it."""
        other = copy.copy(self)
        other._notes = (*self._notes, *notes)
        return other

    @property
    def origin(self) -> Origin:
        """environment/: its compose file, and its Dockerfile when no image is named there or in task.toml."""
        directory = self.files.root / "environment"
        compose = directory if (self.files.root / COMPOSE_FILE).exists() else None
        return self._made_from(compose, self.data.image, directory, self.toml.environment.build_timeout_sec)

    def _made_from(self, compose: Path | None, image: str | None, directory: Path, seconds: float) -> Origin:
        """From `directory` when it holds a Dockerfile, and neither `image` nor the project in `compose` is one."""
        has_image = compose is not None and brings_image(compose / COMPOSE_NAME)
        built = image is None and not has_image and (directory / "Dockerfile").is_file()
        return Origin(directory if built else None, compose, has_image, seconds)

    @property
    def services(self) -> Mapping[str, Sequence[Artifact]]:
        """Those that hooks and `artifacts` name."""
        named = [hook.service for hook in self.part.verifier.collect]
        named += [entry.service for entry in self.part.artifacts if entry.service is not None]
        return {
            name: declared((entry for entry in self.part.artifacts if entry.service == name), name)
            for name in dict.fromkeys(named)
            if name != "main"
        }

    @property
    def part(self) -> Stage:
        """The stage that it is: the one of a task without steps."""
        return self.stages[self._number]

    def in_stages(self) -> Staging | None:
        """Its steps, when it has some."""
        if not self.toml.steps:
            return None
        from forkyard.task.directory.staged import DirectoryStages  # its stages are a kind of this

        return DirectoryStages(self)

    @property
    def needs(self) -> frozenset[Feature]:
        """As for any task, users when the verifier has its own, and machines of another kind; of all its stages."""
        own_user = self.part.verifier.user not in _ROOT
        needs = super().needs | ({Feature.USERS} if own_user else set()) | machine_needs(self.toml, self.files.root)
        if (staging := self.in_stages()) is not None:
            needs = needs.union(*(task.needs for _, task in staging.tasks))
        return needs

    @property
    def unplayable(self) -> tuple[str, ...]:
        """What of the format it uses that this version cannot play."""
        source = TaskSource(self.files.root, self.toml, self._lines)
        return refusals(self.toml, source.at)

    @property
    def networks(self) -> Networks:
        """`[environment]`'s and `[verifier]`'s (or else `[environment]`'s), where `[agent]` says another."""
        return Networks(self.network, self._network_in(self.toml.environment), self._network_in(self.part.verifier))

    def _network_in(self, phase: Networked) -> Network | None:
        if self.toml.network is None:
            return None
        network = TaskData(network_allow=self.toml.hosts_of(phase)).network
        return None if network == self.network else network

    @property
    def solution(self) -> Path | None:
        """solution/ when it holds solve.sh."""
        return None if self.part.solution is None else self.files.root / self.part.solution

    @property
    def tool_servers(self) -> Mapping[str, ToolServer]:
        """`[[environment.mcp_servers]]`."""
        servers = {}
        for server in self.toml.environment.mcp_servers:
            secrets = self._variables.headers.get(server.name, {})
            plain = {name: text for name, text in server.headers.items() if name not in secrets}
            url, command = server.url or "", server.command or ""
            servers[server.name] = ToolServer(url, server.transport, plain, command, server.args, secrets)
        return servers

    def runtime_env(self) -> Mapping[str, str]:
        """`[environment.env]`."""
        return self._variables.environment

    @property
    def models_asked(self) -> Mapping[str, Sequence[str]]:
        """By the templates of `[verifier.env]`."""
        return {name: KEYS[name] for name in asked_for(self.toml)}

    @property
    def models_named(self) -> Mapping[str, str]:
        """The models that its verifiers seem to be told to ask, by the variables in `[verifier.env]`, or by the run."""
        if not self.models_asked:
            return {}
        tables = [{**self._variables.of_verifier(number), **self._given} for number in range(len(self.stages))]
        return {where: model for table in tables for where, model in models_told(table).items()}

    def with_verifier_env(self, env: Mapping[str, str]) -> Self:
        """A copy whose test.sh gets these variables over all that the task says. Raises ConfigError for most names."""
        other = copy.copy(self)
        other._given = {**self._given, **checked_overrides(env)}
        return other

    def solution_env(self) -> Mapping[str, str]:
        """`[solution.env]`."""
        return self._variables.solution

    def for_verifier(self) -> DirectoryTask:
        """As `[verifier.environment]` has it, or tests/Dockerfile."""
        from forkyard.task.directory.apart import ApartTask  # a kind of this

        return ApartTask(self)

    @property
    def secrets(self) -> Secrets:
        """The values that the host's variables gave to templates."""
        return self._variables.secrets

    async def setup(self, runtime: Sandbox, trace: Trace | None = None) -> None:
        """Make the format's directories, bring files beside a named image, and wait until the sandbox is healthy."""
        if self.unplayable:  # whoever runs it without the checks of a run is told, too
            raise ConfigError(*self.unplayable)
        workdir = self.data.workdir or "."
        await make_directories(runtime, workdir)
        directory = self.files.root / "environment"
        alone = self.origin.compose is None
        if alone and self.data.image and directory.is_dir() and not (directory / "Dockerfile").is_file():
            archive = await asyncio.to_thread(self.files.pack, "environment")
            await runtime.push(archive, workdir)
        if check := self.toml.environment.healthcheck:
            await wait_until_healthy(runtime, check, self.runtime_env())
        if trace is None or not self._wants_patch:
            return
        if base := await base_commit(runtime, self.data.workdir, self.runtime_env()):
            trace.verifier["base_commit"] = base

    @property
    def _wants_patch(self) -> bool:
        """Whether model.patch is made: a verifier in the agent's own sandbox sees what was changed."""
        return self.data.verifier == "separate" and not (self.files.root / SCRIPT).exists()

    async def finalize(self, trace: Trace, runtime: Sandbox) -> None:
        """Have evidence made ready: pre_artifacts.sh or model.patch, then the collect hooks of the main service."""
        script = self.files.root / SCRIPT
        evidence = Evidence(
            script=script if script.is_file() else None,
            hooks=tuple(hook for hook in self.part.verifier.collect if hook.service == "main"),
            patch=self._wants_patch,
            base=trace.verifier.get("base_commit"),
            workdir=self.data.workdir,
            env=self.runtime_env(),
            secrets=self.secrets,
        )
        if failed := await make_ready(runtime, evidence):
            trace.verifier["failed_hooks"] = failed

    async def finalize_service(self, trace: Trace, runtime: Sandbox, service: str) -> None:
        """Run the collect hooks of a service."""
        hooks = tuple(hook for hook in self.part.verifier.collect if hook.service == service)
        if failed := await make_ready(runtime, Evidence(None, hooks, False, None, None, {}, self.secrets)):
            told = [{**entry, "service": service} for entry in failed]
            trace.verifier["failed_hooks"] = [*trace.verifier.get("failed_hooks", []), *told]

    async def stage_verifier(self, trace: Trace, runtime: Sandbox) -> None:
        """Put tests/ at /tests in the place of whatever is there; the one door for hidden files.

        When the sandbox prevents it, the trace is settled as INDETERMINATE and `score` has nothing left to do.
        """
        skip = self.files.left_out()
        archives = [await asyncio.to_thread(self.files.pack, tests, "tests", skip) for tests in self.part.tests]
        if verdict := await stage(runtime, archives):
            record_verdict(trace, verdict)
            trace.verifier.update(facts_of(verdict))

    async def score(self, trace: Trace, runtime: Sandbox | None = None) -> None:
        """Run tests/test.sh as staged, record its rewards and metrics, and settle the trace's status."""
        if self.scoring_deferred or trace.verifier.get("code") == "unusable_sandbox":
            return
        if runtime is None:
            trace.settle(Status.INDETERMINATE, "graded without a sandbox, which tests/test.sh needs")
            return
        verifier = self.part.verifier
        run = TestRun(
            timeout=self.data.timeout.scoring,
            env={**self.runtime_env(), **await self._verifier_env(runtime), **self._given},
            script=f"{TESTS}/{posixpath.basename(self.part.script)}",
            user=verifier.user,
            workdir=self.data.workdir,
            beside=trace.verifier.get("mode") == "shared" and _within_reach(trace),
            other_user=self.data.agent_user not in _ROOT,
            flaw=self.part.flaw,
            secrets=self.secrets,
        )
        verdict, facts = await verify(runtime, run)
        trace.verifier.update(facts)
        record_verdict(trace, verdict)

    async def _verifier_env(self, runtime: Sandbox) -> dict[str, str]:
        """`[verifier.env]`, with the address of a model when it asks for one."""
        env = dict(self._variables.of_verifier(self._number))
        written = self.part.verifier.env
        if wants_model(written):
            env |= judge_env(written, await verifier_endpoint(runtime))
        return env


def _within_reach(trace: Trace) -> bool:
    """Whether processes of the agent may be alive that have a hold on the verifier's."""
    return bool(trace.verifier.get("left_running", True)) and not trace.verifier.get("apart", False)


def record_verdict(trace: Trace, verdict: Verdict) -> None:
    """Put a verdict on the record: the reward, the metrics, the status."""
    if verdict.primary is not None:
        trace.record_reward("reward", verdict.primary)
    elif verdict.status is not Status.SCORED:
        trace.rewards["reward"] = None
    trace.record_metrics(verdict.metrics)
    trace.settle(verdict.status, verdict.reason)
