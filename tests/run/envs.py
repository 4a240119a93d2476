"""Envs and agents that runs under test play."""

from __future__ import annotations

import forkyard as vf


class Writes(vf.Harness):
    """Writes its word."""

    needs_model = False

    def __init__(self, *, word: str = "done") -> None:
        self.word = word

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await runtime.run(f"echo {self.word} > /app/answer.txt")


class Says(vf.Harness):
    """Answers, and does nothing."""

    needs_model = False

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        trace.messages.append({"role": "assistant", "content": "It is 5."})


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()
    max_concurrent_agents: int | None = None


class Pair(vf.Env[PairConfig]):
    """Two agents at the same task, one after the other."""

    id = "pair"

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.first.run(task)
        await agents.second.run(task)


class Breaks(Pair):
    """Its own code fails after the first rollout."""

    id = "breaks"

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.first.run(task)
        raise KeyError("mine")


class Never(Pair):
    """Starts nobody."""

    id = "never"

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        return


class Cannot(Pair):
    """Cannot be started."""

    id = "cannot"

    async def start(self) -> None:
        raise RuntimeError("no room")


class Unsure(Pair):
    """Is content with its second play only."""

    id = "unsure"

    def complete(self, episode: vf.Episode) -> bool:
        return episode.traces[0].slot.attempt == 1


class Forgives(Breaks):
    """Fails, and calls it done."""

    id = "forgives"

    def complete(self, episode: vf.Episode) -> bool:
        return True


class Puzzled(Pair):
    """Does not know."""

    id = "puzzled"

    def complete(self, episode: vf.Episode) -> bool:
        raise KeyError("what?")
