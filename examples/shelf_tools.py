"""A toolset that runs in the agent's sandbox: in a module of its own, which goes there."""

from pathlib import Path

import forkyard as vf


class Found(vf.State):
    """What the toolset says of one rollout."""

    searches: int = 0


class Shelf(vf.Toolset[vf.ToolsetConfig, Found]):
    """Looks into the sandbox on the agent's behalf."""

    async def setup_task(self, task: vf.TaskData) -> None:
        """Is told of the task, so its data goes into the sandbox."""
        self.root = Path(task.workdir or "/")

    @vf.tool
    def search(self, word: str) -> list[str]:
        """The files that hold a word."""
        found = [path.name for path in self.root.rglob("*.txt") if word in path.read_text()]
        self.state.searches += 1
        return sorted(found)
