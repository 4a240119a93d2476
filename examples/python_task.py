"""A task in Python, an agent of your own, three rollouts in forks: python examples/python_task.py"""

import asyncio

import forkyard as vf

COMMANDS = {
    "right": "echo $((6 * 7)) > /app/answer",
    "wrong": "echo 54 > /app/answer",
    "lurks": "(until [ -e /hidden/check.sh ]; do sleep 0.1; done; echo 42 > /app/answer) >/dev/null 2>&1 &",
}


class Answer(vf.Task):
    """The result of a question goes into a file."""

    async def setup(self, runtime: vf.Sandbox) -> None:
        """What the agent finds."""
        await runtime.write("/app/question", b"6 * 7")

    async def stage_verifier(self, runtime: vf.Sandbox) -> None:
        """The one door for hidden files: it opens when the agent has ended."""
        await runtime.write("/hidden/check.sh", b"grep -qx 42 /app/answer")

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        """1 for the right answer."""
        return float((await runtime.run(["sh", "/hidden/check.sh"])).ok)


TASKS = [Answer(vf.TaskData(name="answer", prompt="Write the result of /app/question into /app/answer."))]


class Shell(vf.Harness):
    """An agent that knows one command."""

    needs_model = False

    def __init__(self, command: str) -> None:
        self.command = command

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        """Run it, to its end or to the task's deadline."""
        trace.info["exit_code"] = (await runtime.run(self.command)).exit_code


async def image_for(task: vf.Task) -> str:
    """Every sandbox starts from this machine's own /usr."""
    return "host"


async def main() -> None:
    """Play each command once, all at the same time."""
    async with vf.LocalProvider() as provider:
        configs = [vf.Seat(Shell(command), provider, image_for) for command in COMMANDS.values()]
        plays = [vf.SingleAgentEnv().run_episode(TASKS[0], vf.Slot(), {"agent": config}) for config in configs]
        for name, episode in zip(COMMANDS, await asyncio.gather(*plays), strict=True):
            for trace in episode.traces:
                print(name, trace.status, trace.reward)  # noqa: T201 - it is what the script is for


if __name__ == "__main__":
    asyncio.run(main())
