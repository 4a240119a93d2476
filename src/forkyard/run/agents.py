"""An agent outside any env: its configuration is all it needs, and it opens and closes what it plays with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from forkyard.env import Agent, AgentConfig, Seat
from forkyard.env.agent import Table
from forkyard.env.config import BudgetConfig, HarnessChoice, inherited
from forkyard.errors import ConfigError
from forkyard.harness import DEFAULT_HARNESS, harness_class
from forkyard.model.place import API_KEY
from forkyard.run.gateways import budget_of, make_gateway
from forkyard.run.seats import Places, harness_of, model_name, seat_of
from forkyard.task import Task
from forkyard.trace import Slot, Trace

if TYPE_CHECKING:
    from forkyard.gateway import Gateway

DEFAULT = AgentConfig(harness=HarnessChoice(id=DEFAULT_HARNESS))
"""What a configuration leaves open."""
_NAME = "agent"


class OwnAgent(Agent):
    """An agent that plays within `async with agent:` alone; what it opened for that is closed at the end."""

    def __init__(self, seat: Seat, opened: AsyncExitStack) -> None:
        table = Table(
            None, Slot(), lambda *_: None, [], over="the agent is not open: use it within `async with agent:`"
        )
        super().__init__(_NAME, seat, table)
        self._opened: AsyncExitStack | None = opened

    async def __aenter__(self) -> Self:
        """Let it play. Raises RuntimeError when it was closed."""
        if self._opened is None:
            raise RuntimeError("the agent was closed, and opens once: make another with `make_agent`")
        self._table.over = ""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End what it left open."""
        opened, self._opened = self._opened, None
        if opened is not None:
            async with opened:
                await self._table.clear()
        self._table.over = "the agent was closed"

    def mint(self, task: Task) -> Trace:
        """The trace of a rollout that is about to start; those that have ended are their callers' alone."""
        self._table.traces.clear()
        for ended in [trace for trace in self._table.minted if trace.status is not None]:
            self._table.forget(ended)
        return super().mint(task)


def make_agent(config: AgentConfig, *, gateway: Gateway | None = None) -> OwnAgent:
    """An agent outside any env: `async with make_agent(config) as agent: trace = await agent.run(task)`.

    It asks its model by `gateway`, which stays its owner's, or else by one of its own, to where the environment says
    (OPENAI_BASE_URL and the like). Raises ConfigError for what it cannot be.
    """
    config = inherited(config, DEFAULT)
    assert config.harness is not None
    opened = AsyncExitStack()
    model = model_name(_NAME, config, config, harness_class(config.harness.id))
    harness = harness_of(config)
    if model is not None:
        if gateway is None:
            gateway = make_gateway(None, None, API_KEY, None, BudgetConfig())
            opened.push_async_callback(gateway.close)
        if problems := gateway.problems(model, harness.dialect, budget_of(config.budget)):
            raise ConfigError(*problems)
    places = Places(config, None, None, opened)
    return OwnAgent(seat_of(config, harness, model, places, gateway), opened)
