"""From an env's configuration to the seats of a run: for each agent a harness, a provider, a model and its limits."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from forkyard.env import AgentConfig, Env, Seat
from forkyard.env.config import HarnessChoice, RuntimeChoice, SamplingConfig
from forkyard.env.seat import Place
from forkyard.errors import ConfigError, ForkyardError
from forkyard.harness import Harness, make_harness
from forkyard.model import Sampling
from forkyard.run.gateways import budget_of
from forkyard.run.images import Images
from forkyard.run.plan import Plan
from forkyard.sandbox import Provider
from forkyard.sandbox.registry import make_provider
from forkyard.task import TaskTimeout
from forkyard.trace import AgentLimits

if TYPE_CHECKING:
    from forkyard.gateway import Gateway


class Places:
    """The providers of a run, one object for each that its agents name, and the images of tasks on each of them."""

    def __init__(self, plan: Plan, given: Provider | None, stack: AsyncExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._providers: dict[str, Provider] = {}
        self._images: dict[tuple[int, str | None], Images] = {}
        if given is not None:
            self._keep(self._key(RuntimeChoice()), given)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """All that were asked for so far."""
        return tuple(self._providers.values())

    def provider(self, choice: RuntimeChoice) -> Provider:
        """The provider that a configuration names, the run's own when it names none. Raises ConfigError."""
        key = self._key(choice)
        if key not in self._providers:
            self._keep(key, make_provider(choice.type or self._plan.provider, choice.model_extra))
        return self._providers[key]

    def images(self, provider: Provider, choice: RuntimeChoice) -> Images:
        """What gives the names of images on a provider."""
        key = (id(provider), choice.image)
        if key not in self._images:
            self._images[key] = Images(provider, self._plan.base, choice.image)
            self._stack.push_async_callback(self._images[key].close)
        return self._images[key]

    def place(self, choice: RuntimeChoice) -> Place:
        """The provider that a configuration names, with its images. Raises ConfigError."""
        provider = self.provider(choice)
        return Place(provider, self.images(provider, choice).image_for)

    def _key(self, choice: RuntimeChoice) -> str:
        return json.dumps([choice.type or self._plan.provider, choice.model_extra], sort_keys=True, default=str)

    def _keep(self, key: str, provider: Provider) -> None:
        self._providers[key] = provider
        self._stack.push_async_callback(closed, provider)


async def closed(provider: Provider) -> None:
    """Close a provider; a failure is tried once more, because sandboxes may still be open."""
    try:
        await provider.close()
    except ForkyardError:
        await provider.close()


def harness_of(plan: Plan, config: AgentConfig) -> Harness:
    """The harness of an agent. Raises ConfigError."""
    choice = config.harness or HarnessChoice(id=plan.harness, **plan.options)
    return make_harness(choice.id, choice.model_extra)


def model_name(plan: Plan, config: AgentConfig, harness: type[Harness], agent: str) -> str | None:
    """The model of an agent, None for a harness that asks none. Raises ConfigError."""
    if harness.needs_model:
        if (config.model or plan.model) is None:
            raise ConfigError(f"the harness {harness.name!r} needs a model: name one with -m")
        return config.model or plan.model
    if config.model is not None:
        raise ConfigError(f"agent {agent}: the harness {harness.name!r} asks no model: leave {config.model} out")
    return None


def seat_of(
    plan: Plan, config: AgentConfig, harness: Harness, model: str | None, places: Places, gateway: Gateway | None
) -> Seat:
    """The seat of one agent, which keeps no logs yet. Raises ConfigError."""
    provider = places.provider(config.runtime)
    own = config.timeout.of_task.model_dump(exclude_none=True)
    return Seat(
        harness=harness,
        provider=provider,
        image_for=places.images(provider, config.runtime).for_harness(harness),
        gateway=gateway,
        model=model,
        sampling=sampling_of(plan.sampling, config.sampling),
        limits=AgentLimits(
            max_turns=config.max_turns or plan.max_turns,
            max_input_tokens=config.max_input_tokens,
            max_output_tokens=config.max_output_tokens,
            max_total_tokens=config.max_total_tokens,
        ),
        budget=budget_of(config.budget) if gateway is not None else None,
        timeout=TaskTimeout(**{"agent": plan.agent_timeout, **own}),
        workdir=config.runtime.workdir,
        verifier=config.verifier or plan.verifier,
        retries=config.retries,
    )


def sampling_of(run: SamplingConfig, agent: SamplingConfig) -> Sampling:
    """How an agent samples: as the run does, but for what it says itself."""
    return Sampling.of({**run.model_dump(exclude_none=True), **agent.model_dump(exclude_none=True)})


def agent_configs(env: Env[Any]) -> dict[str, AgentConfig]:
    """The configuration of each agent of an env."""
    return {name: getattr(env.config, name) for name in env.agents}
