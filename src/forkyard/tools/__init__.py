"""Tools: what a rollout's agent may call, opened before it acts and closed before anybody grades."""

from forkyard.tools.placing import inside_problems, tool_mounts
from forkyard.tools.rollout import RolloutTools

__all__ = ["RolloutTools", "inside_problems", "tool_mounts"]
