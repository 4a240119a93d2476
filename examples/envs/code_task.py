"""A task with private tests, and agents that solve it, fail, or poison the tests: python examples/envs/code_task.py"""

import asyncio
from pathlib import Path

import forkyard as vf

PRIVATE_TESTS = Path(__file__).with_name("test_solution.sh").read_bytes()
BROKEN = b"""import sys
numbers = sorted(map(float, sys.argv[1:]))
print(numbers[len(numbers) // 2])
"""


class CodeData(vf.TaskData):
    """Fields of one's own would go here."""


class CodeTask(vf.Task[CodeData]):
    """Private tests decide; what the agent hands in is src."""

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("/app/src/median.py", BROKEN)

    async def stage_verifier(self, runtime: vf.Runtime) -> None:
        await runtime.write("/tmp/test_solution.sh", PRIVATE_TESTS)

    @vf.reward
    async def tests(self, runtime: vf.Runtime) -> float:
        result = await runtime.run(["bash", "/tmp/test_solution.sh"], {})
        return float(result.exit_code == 0)


TASKS = [
    CodeTask(
        CodeData(
            name="median",
            prompt="Fix the implementation: src/median.py is wrong for an even count of numbers.",
            workdir="/app",
            artifacts=[vf.Artifact(source="src")],
        )
    )
]

FIX = "sed -i 's/^print.*/import statistics; print(statistics.median(numbers))/' src/median.py"
PLANT = "printf 'exit 0' > /tmp/test_solution.sh; chmod 444 /tmp/test_solution.sh"
LURK = "setsid sh -c 'while :; do printf \"exit 0\" > /tmp/test_solution.sh; done' >/dev/null 2>&1 &"
AGENTS = {"solves": FIX, "fails": "true", "plants": PLANT, "lurks": LURK}


class Shell(vf.Harness):
    """An agent that knows one command."""

    needs_model = False

    def __init__(self, command: str) -> None:
        self.command = command

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.run(self.command)


async def image_for(task: vf.Task) -> str:
    return "host"


async def main() -> None:
    async with vf.LocalProvider() as provider:
        for env in (vf.SingleAgentEnv(), vf.IsolatedVerifierEnv()):
            for name, command in AGENTS.items():
                seat = vf.Seat(Shell(command), provider, image_for)
                episode = await env.run_episode(TASKS[0], vf.Slot(), {"agent": seat})
                for trace in episode.traces:
                    print(f"{env.id:17} {name:6} {trace.status} {trace.reward}")


if __name__ == "__main__":
    asyncio.run(main())
