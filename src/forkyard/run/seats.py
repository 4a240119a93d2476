"""From an env's configuration to the seats of a run: for each agent a harness, a provider, a model and its limits."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from forkyard.env import AgentConfig, Env, Seat
from forkyard.env.config import RuntimeChoice, inherited
from forkyard.env.seat import Place
from forkyard.errors import ConfigError, ForkyardError
from forkyard.harness import Harness, make_harness
from forkyard.model import Sampling
from forkyard.run.gateways import budget_of
from forkyard.run.images import Images
from forkyard.run.plan import Plan
from forkyard.sandbox import Provider
from forkyard.sandbox.registry import DEFAULT_PROVIDER, make_provider
from forkyard.task.sampling import flat
from forkyard.trace import AgentLimits

if TYPE_CHECKING:
    from forkyard.gateway import Gateway


class Places:
    """The providers of a run, one object for each that its agents name, and the images of tasks on each of them.

    `agent` is what all agents inherit; `base` is the image in the place of what the tasks name.
    """

    def __init__(self, agent: AgentConfig, base: str | None, given: Provider | None, stack: AsyncExitStack) -> None:
        self._agent, self._base = agent, base
        self._stack = stack
        self._providers: dict[str, Provider] = {}
        self._images: dict[tuple[int, str | None], Images] = {}
        if given is not None:
            self._keep(_key(self._inherited(RuntimeChoice())), given)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """All that were asked for so far."""
        return tuple(self._providers.values())

    def provider(self, choice: RuntimeChoice) -> Provider:
        """The provider that a configuration names, the run's own when it names none. Raises ConfigError."""
        choice = self._inherited(choice)
        key = _key(choice)
        if key not in self._providers:
            self._keep(key, make_provider(choice.type or DEFAULT_PROVIDER, choice.model_extra))
        return self._providers[key]

    def images(self, provider: Provider, choice: RuntimeChoice) -> Images:
        """What gives the names of images on a provider."""
        key = (id(provider), choice.image)
        if key not in self._images:
            self._images[key] = Images(provider, self._base, choice.image)
            self._stack.push_async_callback(self._images[key].close)
        return self._images[key]

    def place(self, choice: RuntimeChoice) -> Place:
        """The provider that a configuration names, with its images. Raises ConfigError."""
        provider = self.provider(choice)
        return Place(provider, self.images(provider, choice).image_for)

    def _inherited(self, choice: RuntimeChoice) -> RuntimeChoice:
        return inherited(AgentConfig(runtime=choice), self._agent).runtime

    def _keep(self, key: str, provider: Provider) -> None:
        self._providers[key] = provider
        self._stack.push_async_callback(closed, provider)


def _key(choice: RuntimeChoice) -> str:
    return json.dumps([choice.type or DEFAULT_PROVIDER, choice.model_extra], sort_keys=True, default=str)


async def closed(provider: Provider) -> None:
    """Close a provider; a failure is tried once more, because sandboxes may still be open."""
    try:
        await provider.close()
    except ForkyardError:
        await provider.close()


def model_name(agent: str, own: AgentConfig, config: AgentConfig, harness: type[Harness]) -> str | None:
    """The model of an agent, None for a harness that asks none. Raises ConfigError; `own` is what it says itself."""
    if harness.needs_model:
        if config.model is None:
            raise ConfigError(f"the harness {harness.name!r} needs a model: name one with -m")
        return config.model
    if own.model is not None:
        raise ConfigError(f"agent {agent}: the harness {harness.name!r} asks no model: leave {own.model} out")
    return None


def harness_of(config: AgentConfig) -> Harness:
    """The harness of an agent. Raises ConfigError."""
    assert config.harness is not None  # every plan has one to be inherited
    return make_harness(config.harness.id, config.harness.model_extra)


def seat_of(config: AgentConfig, harness: Harness, model: str | None, places: Places, gateway: Gateway | None) -> Seat:
    """The seat of one agent, which keeps no logs yet. Raises ConfigError."""
    provider = places.provider(config.runtime)
    return Seat(
        harness=harness,
        provider=provider,
        image_for=places.images(provider, config.runtime).for_harness(harness),
        gateway=gateway,
        model=model,
        sampling=Sampling.of(flat(config.sampling.model_dump(exclude_none=True))),
        limits=AgentLimits(
            max_turns=config.max_turns,
            max_input_tokens=config.max_input_tokens,
            max_output_tokens=config.max_output_tokens,
            max_total_tokens=config.max_total_tokens,
        ),
        budget=budget_of(config.budget) if gateway is not None else None,
        timeout=config.timeout.of_task,
        workdir=config.runtime.workdir,
        verifier=config.verifier,
        retries=config.retries,
    )


def agent_configs(plan: Plan, env: Env[Any]) -> dict[str, AgentConfig]:
    """The configuration of each agent of an env, what it leaves open being the run's."""
    return {name: inherited(getattr(env.config, name), plan.agent) for name in env.agents}
