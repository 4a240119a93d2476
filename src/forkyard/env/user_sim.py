"""The env `user-sim`: a user, played by an agent, talks with the assistant, turn by turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field, model_validator

from forkyard.env.agent import Agents
from forkyard.env.config import AgentConfig, EnvConfig, HarnessChoice
from forkyard.env.env import Env
from forkyard.env.episode import Episode, acted_in, withdraw
from forkyard.env.interaction import Interaction, Segment
from forkyard.env.seat import Seat
from forkyard.grade import unknown
from forkyard.task import Task, TaskData

USER_TURNS = 8
"""How often a user speaks at most, unless its limits say otherwise: two who never end would talk for ever."""
GREETING = "Hello! How can I help you today?"
PERSONA = """\
You are a person who writes to an assistant. Stay in that part: never say that you are a model, and do not do the \
assistant's work. This is your situation and what you want:

{scenario}

Write what that person would write, one short message at a time, and tell only what is asked or what belongs there. \
When you have what you wanted, or see that you will not get it, write {done} and nothing after it.
"""


class UserSimConfig(EnvConfig):
    """`persona` is what the user is told, with `{scenario}` for the task's prompt and `{done}` for the mark.

    With `last_turn` the assistant still answers what the user said beside the mark.
    """

    assistant: AgentConfig = AgentConfig()
    user: AgentConfig = AgentConfig(harness=HarnessChoice(id="null"), max_turns=USER_TURNS)
    persona: str = PERSONA
    done_marker: str = Field("###DONE###", min_length=1)
    last_turn: bool = True

    @model_validator(mode="after")
    def _has_its_places(self) -> Self:
        missing = [place for place in ("{scenario}", "{done}") if place not in self.persona]
        if missing:
            raise ValueError(f"the persona has no {' and no '.join(missing)}: the user would not know it")
        return self


class UserTask(Task[TaskData]):
    """What the user is given. There is nothing to grade in it."""

    scoring_deferred = True


class UserSimEnv(Env[UserSimConfig]):
    """The assistant is given the task without its prompt, which is the user's scenario, and is graded as any agent.

    Its trace gets the metric `user_turns`, and `info["ended_by"]`: "user", "assistant", or why one of them stopped.
    When the user's side failed, nothing is known of the assistant.
    """

    id: ClassVar[str] = "user-sim"

    async def setup(self, agents: Agents) -> None:
        """The user is not learned from, and never speaks without a bound."""
        user = agents.user
        user.trainable = False
        if user.seat.limits.max_turns is None:
            user.seat = replace(user.seat, limits=replace(user.seat.limits, max_turns=USER_TURNS))

    def plays(self, name: str, task: Task) -> Task:
        """The assistant's task has no prompt; the user's has the persona."""
        if name != "user":
            return task.with_data(prompt=None)
        persona = self.config.persona.replace("{scenario}", task.data.prompt_text)
        persona = persona.replace("{done}", self.config.done_marker)
        return UserTask(TaskData(name=task.name, system_prompt=persona, network_allow=()))

    def problems(self, task: Task, seats: Mapping[str, Seat]) -> list[str]:
        """Both must be able to converse, and the task to be one conversation."""
        problems = super().problems(task, seats)
        problems += [
            f"the {name}'s harness {seats[name].harness.name!r} plays a task in one go and cannot be talked with: "
            f"choose another with --env.{name}.harness"
            for name in self.agents
            if not seats[name].harness.converses
        ]
        if task.in_stages() is not None:
            problems.append(f"{task.where('steps')}: a task in stages cannot be talked through: play it without a user")
        return problems if task.data.prompt_text else [*problems, "the task has no prompt, which would be the scenario"]

    async def run(self, task: Task, agents: Agents) -> None:
        """Let them talk until one of them ends it."""
        assistant_task, user_task = self.plays("assistant", task), self.plays("user", task)
        async with (
            agents.assistant.interaction(assistant_task) as assistant,
            agents.user.interaction(user_task) as user,
        ):
            trace = assistant.trace
            trace.metrics["user_turns"] = 0.0
            trace.info["ended_by"] = await self._talk(assistant, user)

    async def _talk(self, assistant: Interaction, user: Interaction) -> str:
        heard: Segment = await user.turn(GREETING)
        while heard.root_reply is not None:
            assistant.trace.metrics["user_turns"] = (assistant.trace.metrics["user_turns"] or 0.0) + 1.0
            said, done = self._without_mark(heard.last_reply)
            if done and not (said and self.config.last_turn):
                return "user"
            answer = await assistant.turn(said)
            if answer.terminated or answer.root_reply is None:
                return "user" if done else _why(assistant, "assistant")
            if done:
                return "user"
            if heard.terminated:
                break
            heard = await user.turn(answer.last_reply)
        return _why(user, "user")

    def _without_mark(self, reply: str) -> tuple[str, bool]:
        """What the user said beside the mark, "" for nothing but signs, and whether the mark was there."""
        before, mark, after = reply.partition(self.config.done_marker)
        if not mark:
            return reply, False
        said = " ".join(part for part in (before.strip(), after.lstrip(".,;:!? \n")) if part)
        return (said if re.search(r"\w", said) else ""), True

    async def finalize(self, task: Task, episode: Episode) -> None:
        """An assistant whose user failed has no reward."""
        for user in episode.by_agent.get("user", []):
            for assistant in episode.by_agent.get("assistant", []) if user.errors else []:
                withdraw(assistant, unknown(acted_in(assistant)), f"the user's side failed: {user.reason}")


def _why(talk: Interaction, whose: str) -> str:
    condition = talk.trace.stop_condition
    return whose if condition in (None, "agent_completed") else str(condition)
