"""A tool inside the sandbox: forkyard run examples/shelf.py -a scripted --ak script=examples/shelf.json"""

from shelf_tools import Found, Shelf

import forkyard as vf


class Librarian(vf.Task[vf.TaskData, Found]):
    """One of the texts holds the word."""

    @classmethod
    def toolsets(cls, config):
        """Made anew for each rollout; it runs in the sandbox of that."""
        return [Shelf(vf.ToolsetConfig(colocated=True))]

    async def setup(self, runtime):
        """Three texts."""
        for name, text in (("one", "a pear"), ("two", "an apple"), ("three", "a plum")):
            await runtime.write(f"/srv/texts/{name}.txt", text.encode())

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Whether the last reply names it."""
        return float("two.txt" in trace.last_reply)


TASKS = [Librarian(vf.TaskData(name="librarian", prompt="Which text tells of an apple?", workdir="/srv"))]
