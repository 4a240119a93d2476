"""A user, played from a script, talks with an assistant, played from another: python examples/envs/user_sim.py"""

import asyncio

import forkyard as vf


class Support(vf.Task):
    """The right order must be named in the end."""

    @vf.reward
    async def named(self, trace: vf.Trace) -> float:
        return float("12" in trace.last_reply)


class Says(vf.Harness):
    """Says one line a turn. A harness with a model would ask it here."""

    needs_model = False

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Runtime) -> None:
        said = len(trace.assistant_messages)
        trace.messages.append({"role": "assistant", "content": self.lines[said]})


async def image_for(task: vf.Task) -> str:
    return "host"


async def main() -> None:
    task = Support(vf.TaskData(name="order", prompt="You want to cancel order 12, and tell its number when asked."))
    async with vf.LocalProvider() as provider:
        seats = {
            "user": vf.Seat(Says("Please cancel my order.", "It is 12.", "Thanks! ###DONE###."), provider, image_for),
            "assistant": vf.Seat(Says("Which one?", "12 is cancelled.", "12 it was. Bye!"), provider, image_for),
        }
        episode = await vf.UserSimEnv().run_episode(task, vf.Slot(), seats)
    (assistant,) = episode.by_agent["assistant"]
    print(assistant.transcript)
    print(assistant.status, assistant.reward, assistant.metrics["user_turns"], assistant.info["ended_by"])


if __name__ == "__main__":
    asyncio.run(main())
