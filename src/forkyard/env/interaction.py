"""A conversation with an agent: one rollout that is played turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

from forkyard.env.rollout import Rollout
from forkyard.errors import EnvError, HarnessError
from forkyard.trace import Message, Messages, Status, Trace, messages, text_of

Said = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A user's words, one message, or several."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one turn brought: its messages, from the user's on, and whether the rollout is over with it.

    It is when the agent gave no reply: there is nothing to go on with.

    `root_reply` is the text of the agent's reply, None when it gave none; `last_reply` is the same as a text.
    """

    messages: Messages
    root_reply: str | None
    terminated: bool

    @property
    def last_reply(self) -> str:
        """The text of the agent's reply, "" when it gave none."""
        return self.root_reply or ""


class Interaction:
    """An open conversation. The agent's time runs only while a turn does, and its limits hold over all turns."""

    def __init__(self, rollout: Rollout, room: AbstractAsyncContextManager[object]) -> None:
        self._rollout = rollout
        self._room = room
        self._waiting: Messages = []
        self._begun = False
        self._busy = False
        self._over = False

    @property
    def trace(self) -> Trace:
        """The rollout's record."""
        return self._rollout.trace

    async def open(self) -> None:
        """Make the agent ready. Raises HarnessError for one that cannot converse, EnvError when it cannot be had."""
        harness = self._rollout.seat.harness
        if not harness.converses:
            error = HarnessError(f"the harness {harness.name!r} plays a task in one go and cannot be talked with")
            self.trace.record_error(error)
            self.trace.settle(Status.INFRASTRUCTURE_ERROR, str(error))
            raise error
        await self._rollout.open()
        if not self._rollout.going:
            raise EnvError(f"the agent {self.trace.agent!r} could not be made ready: {self.trace.reason}")

    async def turn(self, message: Said | None = None) -> Segment:
        """Say something and hear the agent out.

        The first turn of a task with a prompt says nothing, since the prompt is said; every other says something.
        Raises ValueError otherwise, and when the conversation is over.
        """
        if self._over or self._busy:
            raise ValueError("the conversation is over" if self._over else "the agent has not ended its turn yet")
        said = [*self._waiting, *_messages(message)]
        self._check(said)
        self._waiting, self._busy = [], True
        trace = self.trace
        start = len(trace.messages)
        trace.messages.extend(said)
        try:
            async with self._room:
                await self._act()
                while self._waiting and not self._over:
                    trace.messages.extend(self._waiting)
                    self._waiting = []
                    await self._act()
        finally:
            self._busy = False
        segment = _segment(trace.messages[start:], self._over)
        self._over = self._over or segment.root_reply is None
        return replace(segment, terminated=self._over)

    async def steer(self, message: Said) -> None:
        """Tell the agent something as soon as it can hear it: within the turn under way, else with the next."""
        await self.send(message)

    async def send(self, message: Said, mode: Literal["steer", "queue"] = "steer") -> None:
        """Leave a message. Of a turn under way, "steer" has it said before that ends, "queue" with the next turn."""
        if mode == "queue" and self._busy:
            raise ValueError("a turn is under way: say it with the next `turn`")
        self._waiting += _messages(message)

    async def close(self) -> Trace:
        """End the conversation, grade what was done, and return the trace."""
        if not self._rollout.ended:
            self._over = True
            self.trace.stop("user_closed")
            await self._rollout.finish()
            await self._rollout.close()
        return self.trace

    def _check(self, said: Messages) -> None:
        has_prompt = self._rollout.task.data.prompt is not None
        if not self._begun and has_prompt and said:
            raise ValueError("the task has a prompt, so the first turn says nothing: `await talk.turn()`")
        if not said and (self._begun or not has_prompt):
            raise ValueError("this turn must say something: `await talk.turn(text)`")
        self._begun = True

    async def _act(self) -> None:
        """One launch of the harness; that it has replied is no reason to stop, anything else is."""
        trace = self.trace
        await self._rollout.act()
        if trace.stop_condition == "agent_completed" and self._rollout.going:
            trace.stop_condition = None
        else:
            self._over = True


def _messages(said: Said | None) -> Messages:
    if said is None:
        return []
    if isinstance(said, str):
        return [messages.user(said)]
    return [dict(said)] if isinstance(said, Mapping) else [dict(each) for each in said]


def _segment(talk: Sequence[Message], over: bool) -> Segment:
    replies = [text_of(message.get("content")) for message in talk if message["role"] == "assistant"]
    return Segment(list(talk), replies[-1] if replies else None, over)
