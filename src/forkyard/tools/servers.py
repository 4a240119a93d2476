"""A toolset of this process as a server of one rollout's tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forkyard.harness.offering import UNNAMED
from forkyard.model import ToolSpec
from forkyard.task import AnyToolset, State


@dataclass(frozen=True, slots=True)
class ToolsetServer:
    """A toolset, called with the state of one rollout."""

    toolset: AnyToolset
    state: State

    @property
    def name(self) -> str:
        """What it is called where servers are configured."""
        return self.toolset.server_name or UNNAMED

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Its tools as models are told of them, by its own names for them."""
        tools, specs = self.toolset.tools, self.toolset.specs()
        return {tool.name: spec for tool, spec in zip(tools, specs, strict=True)}

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The result of a tool as text. Raises ToolsetError, and every other error of this package that it raises."""
        return await self.toolset.call(name, arguments, self.state)
