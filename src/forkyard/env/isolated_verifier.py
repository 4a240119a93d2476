"""The env `isolated-verifier`: one solver, graded in a fresh sandbox that gets what the task declares and no more.

It is the grading mode `separate` (see `forkyard.grade.separate`) with a say in the verifier's sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from forkyard.env.agent import Agents
from forkyard.env.checks import seat_problems
from forkyard.env.config import AgentConfig, Config, EnvConfig, RuntimeChoice
from forkyard.env.env import Env
from forkyard.env.seat import Place, Seat, Verification
from forkyard.sandbox import Provider
from forkyard.sandbox.registry import make_provider, provider_factory
from forkyard.task import Task


class VerifierConfig(Config):
    """The verifier's sandbox: None is the solver's `runtime`, and the task's environment variables.

    `retries` says how often a verification that failed, for a reason that is no verdict, is tried again.
    """

    runtime: RuntimeChoice | None = None
    env: dict[str, str] | None = None
    retries: int = Field(2, ge=0)


class IsolatedVerifierConfig(EnvConfig):
    """One agent, and the verifier of its work."""

    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()


class IsolatedVerifierEnv(Env[IsolatedVerifierConfig]):
    """One rollout, verified in a sandbox of its own. A verification that fails leaves no reward, and says why."""

    id: ClassVar[str] = "isolated-verifier"

    def __init__(self, config: IsolatedVerifierConfig | None = None) -> None:
        super().__init__(config)
        self._place: Place | None = None
        self._opened: Provider | None = None
        if (runtime := self.config.verifier.runtime) is not None and runtime.type is not None:
            provider_factory(runtime.type)  # an unknown one is told at once

    def furnish(self, place_for: Callable[[RuntimeChoice], Place]) -> None:
        """Take the verifier's own place, if it has one."""
        if (runtime := self.config.verifier.runtime) is not None and runtime.type is not None:
            self._place = place_for(runtime)

    async def start(self) -> None:
        """Open the verifier's own provider, unless a run has furnished it."""
        runtime = self.config.verifier.runtime
        if self._place is None and runtime is not None and runtime.type is not None:
            self._opened = make_provider(runtime.type, runtime.model_extra or {})

    async def stop(self) -> None:
        """Close what `start` opened."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def problems(self, task: Task, seats: Mapping[str, Seat]) -> list[str]:
        """Also what a separate sandbox needs, and judges, which ask a model and are no deterministic check."""
        problems = seat_problems(task, self.seated("agent", seats["agent"]))
        if task.plugged_judges():
            problems.append(
                "isolated-verifier runs deterministic task metrics and rewards; "
                "model-backed task judges are not supported"
            )
        return problems

    async def setup(self, agents: Agents) -> None:
        """Have the agent's work verified apart."""
        agents.agent.seat = self.seated("agent", agents.agent.seat)

    async def run(self, task: Task, agents: Agents) -> None:
        """Let the agent play the task."""
        await agents.agent.run(task)

    def seated(self, name: str, seat: Seat) -> Seat:
        """Its work is verified apart, at the verifier's own place if that is another."""
        choice = self.config.verifier
        own = self._place.provider if self._place else self._opened
        elsewhere = own is not None and own is not seat.provider
        verification = Verification(
            provider=own if elsewhere else None,
            image_for=self._place.image_for if elsewhere and self._place else None,
            image=choice.runtime.image if choice.runtime else None,
            workdir=choice.runtime.workdir if choice.runtime else None,
            env=choice.env,
            retries=choice.retries,
        )
        return replace(seat, verifier="separate", verification=verification)
