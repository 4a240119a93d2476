"""An agent judges another one's poem, each in a sandbox of its own: python examples/envs/agentic_judge.py"""

import asyncio
import json

import forkyard as vf

POEM = "mkdir -p /app; echo 'roses are red' > /app/poem.txt; echo 'my notes' > /app/notes.txt"
VERDICT = {"verdicts": [{"name": "solved", "reason": "a line is no poem", "verdict": "no"}]}
LOOK = ["ls /app", "cat /app/poem.txt", f"echo '{json.dumps(VERDICT)}' > /tmp/verdict.json"]


class Shell(vf.Harness):
    """An agent that knows its commands, and tells what came of them."""

    needs_model = False

    def __init__(self, *commands: str) -> None:
        self.commands = commands

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["saw"] = [(await runtime.run(command)).stdout.strip() for command in self.commands]


async def image_for(task: vf.Task) -> str:
    return "host"


async def main() -> None:
    task = vf.Task(vf.TaskData(name="poem", prompt="Write a poem.", artifacts=[vf.Artifact(source="/app/poem.txt")]))
    async with vf.LocalProvider() as provider:
        seats = {
            "solver": vf.Seat(Shell(POEM), provider, image_for),
            "judge": vf.Seat(Shell(*LOOK), provider, image_for),
        }
        for env in (vf.AgenticJudgeEnv(), vf.SharedAgenticJudgeEnv()):
            episode = await env.run_episode(task, vf.Slot(), seats)
            solver, judge = episode.traces
            print(env.id, solver.status, solver.rewards["judge"], judge.info["saw"][0].split())


if __name__ == "__main__":
    asyncio.run(main())
