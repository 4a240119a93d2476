"""Four attempts at one task, and which was the best: python examples/envs/best_of_n.py"""

import asyncio
import itertools

import forkyard as vf


class Guess(vf.Task):
    """The nearer to 42, the better."""

    @vf.reward
    async def near(self, runtime: vf.Runtime) -> float:
        return 1.0 / (1.0 + abs(42 - int(await runtime.read("/guess"))))


class Guesses(vf.Harness):
    """Every attempt guesses something else; the third one breaks."""

    needs_model = False

    def __init__(self) -> None:
        self.guesses = itertools.cycle(["40", "42", "none", "43"])

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("/guess", next(self.guesses).encode())


async def image_for(task: vf.Task) -> str:
    return "host"


async def main() -> None:
    env = vf.BestOfNEnv(vf.BestOfNConfig(n=4, threshold=1.0))
    task = Guess(vf.TaskData(name="guess", prompt="Write a number into /guess."))
    async with vf.LocalProvider() as provider:
        seat = vf.Seat(Guesses(), provider, image_for)
        episode = await env.run_episode(task, vf.Slot(), {"agent": seat})
    for trace in episode.traces:
        print(trace.status, trace.reward, trace.metrics["best"], trace.metrics["pass_at_n"])


if __name__ == "__main__":
    asyncio.run(main())
