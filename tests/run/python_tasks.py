"""A file of Python tasks as `forkyard run` takes it, and an agent for them."""

from __future__ import annotations

from collections.abc import Iterator

import forkyard as vf

QUESTIONS = {"sum": ("2 + 3", "5"), "product": ("6 * 7", "42")}


class Question(vf.TaskData):
    """A task's own data."""

    answer: str


class Answer(vf.Task[Question]):
    async def setup(self, runtime: vf.Sandbox) -> None:
        await runtime.write("/app/question", self.data.prompt_text.encode())

    async def stage_verifier(self, runtime: vf.Sandbox) -> None:
        await runtime.write("/hidden/answer", self.data.answer.encode())

    @vf.reward
    async def right(self, runtime: vf.Sandbox) -> float:
        return float((await runtime.run("test $(cat /app/answer) = $(cat /hidden/answer)")).ok)


class Questions(vf.Taskset):
    name = "questions"

    def load(self) -> Iterator[vf.Task]:
        for name, (prompt, answer) in QUESTIONS.items():
            yield Answer(Question(name=name, prompt=prompt, answer=answer))


class Calculator(vf.Harness):
    """Works out what the question says."""

    needs_model = False

    async def launch(self, ctx: vf.ModelContext, task: vf.Task, trace: vf.Trace, runtime: vf.Sandbox) -> None:
        await runtime.run("echo $(( $(cat /app/question) )) > /app/answer")
