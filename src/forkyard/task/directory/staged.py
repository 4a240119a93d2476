"""The stages of a task directory as tasks: each goes on in the sandbox of the one before."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from functools import cached_property

from forkyard.errors import TaskError
from forkyard.sandbox import Network, Sandbox
from forkyard.task.data import TaskTimeout
from forkyard.task.directory.artifacts import declared
from forkyard.task.directory.healthcheck import wait_until_healthy
from forkyard.task.directory.outcome import Played, told, total
from forkyard.task.directory.placing import clear_tests
from forkyard.task.directory.task import DirectoryTask, record_verdict
from forkyard.trace import Trace
from forkyard.values import printable, tail

_SETUP = "setup.sh"


class StageTask(DirectoryTask):
    """One stage of a task. Its `setup` takes away what the verifier of the one before left."""

    def __init__(self, task: DirectoryTask, number: int) -> None:
        part = task.stages[number]
        timeout = TaskTimeout(agent=part.agent_seconds, scoring=part.verifier.timeout_sec)
        said = {} if part.agent_network is None else {"network_allow": task.toml.hosts_of(part.agent)}
        data = task.with_data(
            prompt=part.prompt,
            agent_user=part.agent.user,
            artifacts=declared(part.artifacts),
            timeout=timeout.model_copy(update=task.data.timeout.model_dump(include={"setup", "finalize"})),
            **said,
        ).data
        super().__init__(data, task.toml, task.files, task._variables, task._notes, task.stages, task._lines)
        self._number = number
        self._given = task._given
        self.scoring_deferred = task.scoring_deferred

    def in_stages(self) -> None:
        """It is one."""

    async def setup(self, runtime: Sandbox, trace: Trace | None = None) -> None:
        """Clear /tests and the logs, bring the stage's workdir/, run its setup.sh, and wait until it is healthy."""
        await clear_tests(runtime)
        part, workdir = self.part, self.data.workdir or "."
        if part.workdir is not None:
            archive = await asyncio.to_thread(self.files.pack, part.workdir)
            await runtime.push(archive, workdir)
        if part.setup is not None:
            await self._run_setup(runtime)
        if part.healthcheck is not None:
            await wait_until_healthy(runtime, part.healthcheck, self.runtime_env())

    async def _run_setup(self, runtime: Sandbox) -> None:
        command, seconds = ["bash", f"./{_SETUP}"], self.toml.environment.build_timeout_sec
        result = await runtime.run(
            command, self.runtime_env(), cwd=self.data.workdir, user=self.data.agent_user, timeout=seconds
        )
        if not result.ok:
            how = f"took over {seconds:g} s" if result.timed_out else f"exited {result.exit_code}"
            said = printable(tail(self.secrets.hide(result.stdout + result.stderr).strip(), 500))
            raise TaskError(f"{posixpath.join(str(self.part.workdir), _SETUP)} {how}: {said}")


class DirectoryStages:
    """A `Staging`."""

    def __init__(self, task: DirectoryTask) -> None:
        self._task = task

    @cached_property
    def tasks(self) -> Sequence[tuple[str, DirectoryTask]]:
        """The stages by name."""
        return [(part.name, StageTask(self._task, number)) for number, part in enumerate(self._task.stages)]

    @property
    def networks(self) -> set[Network | None]:
        """All that the sandbox is to reach at some time."""
        return {network for _, task in self.tasks for network in task.networks.asked}

    def goes_on(self, played: Sequence[Trace]) -> bool:
        """Whether the last one passes its gate; one that was never graded has passed none."""
        part, numbers = self._task.stages[len(played) - 1], self._played(played)[-1].numbers
        return part.passes(numbers)

    def conclude(self, trace: Trace, played: Sequence[Trace]) -> None:
        """The rewards by the task's strategy; each stage is in `trace.verifier["stages"]`."""
        stages = self._played(played)
        trace.verifier["stages"] = told([part.name for part in self._task.stages], stages)
        verdict = total(stages, self._task.toml.reward_strategy)
        trace.verifier |= {"code": verdict.code, "reason": verdict.reason}
        record_verdict(trace, verdict)

    def _played(self, played: Sequence[Trace]) -> list[Played]:
        return [Played(part.name, trace) for part, trace in zip(self._task.stages, played, strict=False)]
