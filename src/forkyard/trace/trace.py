"""The Trace: everything one rollout leaves, and the line it becomes.

A trace is minted before anything starts and narrated into while the rollout runs, so that whatever happened before a
crash is on the record. `Status` says what is known of the reward, `stop` says why the agent stopped; the two are
never merged.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from forkyard.errors import RolloutError
from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.fields import Fields
from forkyard.trace.graph import Branch, Graph, Node
from forkyard.trace.messages import AssistantMessage, Message, Messages, Talk, ToolMessage, text_of, typed
from forkyard.trace.values import Reward, Slot, Status, Timing
from forkyard.values import new_id, tail

TRACEBACK_LIMIT = 8000
QUESTION_LIMIT = 20_000  # characters that are kept of what a judge was asked
TRUNCATED = frozenset(
    {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length", "compaction_failed"}
)

DataT = TypeVar("DataT", default=Any)
StateT = TypeVar("StateT", default=Any)
AgentT = TypeVar("AgentT", default=Any)


@dataclass(slots=True)
class Trace(Generic[DataT, StateT, AgentT]):
    """One rollout's record. Hooks and rewards of a task receive it as `trace`.

    `messages` is the conversation as the harness tells it, `graph` every history that models were shown.
    """

    task: str = ""
    task_digest: str | None = None
    slot: Slot = field(default_factory=Slot)
    agent: str = "agent"
    harness: str = ""
    model: str | None = None
    sandbox_provider: str = ""
    id: str = field(default_factory=new_id)
    started: float = field(default_factory=time.time)
    messages: Messages = field(default_factory=Talk)
    graph: Graph = field(default_factory=Graph, repr=False)
    calls: list[ModelCall] = field(default_factory=list)
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    timing: Timing = field(default_factory=Timing)
    rewards: dict[str, Reward | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    verifier: dict[str, Any] = field(default_factory=dict)
    status: Status | None = None
    reason: str | None = None
    stop_condition: str | None = None
    is_timeout: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    trainable: bool = True  # whether it is to be learned from: a judge's or a simulated user's part is not
    state: StateT = field(default=None, repr=False)  # type: ignore[assignment]  # live only: a rollout gives it
    model_failing: str | None = None  # why the model call under way is being tried again, live only
    on_model_failure: Callable[[Trace, str, float], object] | None = field(default=None, repr=False)  # live only
    rewritten: dict[Any, Message] = field(default_factory=dict, repr=False)  # by interceptors, for good; live only

    def __post_init__(self) -> None:
        if not isinstance(self.messages, Talk):
            self.messages = Talk(self.messages)
        self.timing.start = self.started

    @property
    def reward(self) -> float | None:
        """The sum of score times weight, or None when there is no reward or one is still missing."""
        given = [reward for reward in self.rewards.values() if reward is not None]
        if not given or len(given) < len(self.rewards):
            return None
        return math.fsum(reward.value for reward in given)

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong (a low reward is not wrong)."""
        return not self.errors

    @property
    def has_error(self) -> bool:
        """The contrary of `ok`."""
        return not self.ok

    @property
    def last_error(self) -> Fields | None:
        """The last thing that went wrong: its `type`, `message`, `status_code` and `traceback`."""
        return Fields(self.errors[-1]) if self.errors else None

    @property
    def is_completed(self) -> bool:
        """Whether the agent has stopped."""
        return self.stop_condition is not None

    @property
    def is_truncated(self) -> bool:
        """Whether the agent was cut short: by a limit, by its context, or in the middle of its last reply."""
        asked = [call for call in self.calls if call.purpose == "agent" and call.error is None]
        reason = asked[-1].finish_reason if asked else self.info.get("finish_reason")
        return self.stop_condition in TRUNCATED or reason == "length"

    # The conversation, read.

    @property
    def num_turns(self) -> int:
        """How many replies the model gave; an assistant's message that came with a prompt is none."""
        return self.graph.turns or self.steps

    @property
    def nodes(self) -> list[Node]:
        """Every message of every history, in the order of their making: the nodes of `graph`."""
        return self.graph.nodes

    @property
    def branches(self) -> list[Branch]:
        """Every history there is; the conversation alone when no call was put into the graph."""
        if self.graph.nodes or not self.messages:
            return self.graph.branches([call for call in self.calls if call.purpose == "agent"])
        told = Graph()
        told.commit(self.messages, None)
        return told.branches()

    @property
    def num_branches(self) -> int:
        """How many histories there are."""
        return len(self.branches)

    @property
    def assistant_messages(self) -> list[AssistantMessage]:
        """What the model said, in order."""
        return [message for message in map(typed, self.messages) if isinstance(message, AssistantMessage)]

    @property
    def tool_messages(self) -> list[ToolMessage]:
        """What tools answered, in order."""
        return [message for message in map(typed, self.messages) if isinstance(message, ToolMessage)]

    @property
    def last_message(self) -> Message | None:
        """The last message, None before the first."""
        return typed(self.messages[-1]) if self.messages else None

    @property
    def last_reply(self) -> str:
        """The text of the model's last message, or ""."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return text_of(message.get("content"))
        return ""

    @property
    def root_reply(self) -> str | None:
        """The last reply, None before the first."""
        return self.last_reply if self.assistant_messages else None

    @property
    def transcript(self) -> str:
        """The conversation as text, each message under its role; without reasoning."""
        return "\n\n".join(_told(message) for message in self.messages)

    @property
    def num_input_tokens(self) -> int:
        """Tokens of all prompts."""
        return self.usage.input

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all replies."""
        return self.usage.output

    @property
    def num_total_tokens(self) -> int:
        """Tokens of all prompts and replies."""
        return self.usage.total

    # Narration.

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        """Record one reward; raises ValueError unless it is a finite number."""
        self.rewards[name] = Reward(_finite(name, value), weight)

    def record_metric(self, name: str, value: float) -> None:
        """Record one metric; raises ValueError unless it is a finite number."""
        self.metrics[name] = _finite(name, value)

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Record several metrics."""
        for name, value in values.items():
            self.record_metric(name, value)

    def record_call(self, call: ModelCall) -> None:
        """Put one ended model call on the record: its money, and the agent's own replies and tokens."""
        self.calls.append(call)
        if call.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + call.cost_usd
        if call.purpose != "agent":
            return
        self.usage.add(call.usage)
        if call.error is None:
            self.steps += 1

    def record_judge_call(self, name: str, request: Mapping[str, Any] | Sequence[Message], response: Any) -> None:
        """Put what a judge was asked and answered on the record, under `info["judge_calls"]`.

        Of a long question, which mostly quotes the conversation, beginning and end are kept.
        """
        asked = dict(request) if isinstance(request, Mapping) else {"messages": list(request)}
        if "messages" in asked:
            asked["messages"] = [_shortened(message) for message in asked["messages"]]
        answered = response if isinstance(response, Mapping | str) else _dumped(response)
        self.info.setdefault("judge_calls", []).append({"name": name, "request": asked, "response": answered})

    def note_model_failure(self, why: str, pause: float = 0.0) -> None:
        """The model call under way failed and is tried again, at the provider's wish not before `pause` seconds."""
        self.model_failing = why
        if self.on_model_failure is not None:
            self.on_model_failure(self, why, pause)

    def stop(self, condition: str, override: bool = False) -> None:
        """Say why the agent stopped; the first reason stands unless overridden."""
        if self.stop_condition is None or override:
            self.stop_condition = condition

    def record_timeout(self, stage: str) -> None:
        """A stage (setup, agent, finalize, scoring) ran into its deadline: a stop, not an error."""
        self.is_timeout = True
        self.stop(f"{stage}_timeout", override=True)

    def record_error(self, error: BaseException) -> None:
        """Put an error on the record; it becomes the stop condition when nothing stopped the agent before."""
        kind = error.kind if isinstance(error, RolloutError) else type(error).__name__
        self.errors.append(
            Fields(
                type=kind,
                message=tail(str(error), TRACEBACK_LIMIT),
                status_code=getattr(error, "status_code", None),
                lasting=getattr(error, "lasting", False),
                fatal=getattr(error, "fatal", False),
                traceback=tail("".join(traceback.format_exception(error)), TRACEBACK_LIMIT),
            )
        )
        self.stop(f"{kind}_error" if isinstance(error, RolloutError) else "error")

    def settle(self, status: Status, reason: str | None = None) -> None:
        """Decide what is known of the reward. Said once; a later call is ignored."""
        if self.status is None:
            self.status = status
            self.reason = reason

    def to_record(self) -> dict[str, Any]:
        """The line of the dataset: the first seed's fields in its order, then ours. Strict JSON values only."""
        from forkyard.trace.record import record_of  # it makes traces, too

        return record_of(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trace:
        """The trace that a line was made of, but for what is live only. Raises ValueError for what is no line."""
        from forkyard.trace.record import trace_of

        return trace_of(record)


def _told(message: Message) -> str:
    lines = [f"{message['role']}: {text_of(message.get('content'))}".rstrip()]
    for call in typed(message).get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(f"calls {function.get('name')}({function.get('arguments')})")
    return "\n".join(lines)


def _shortened(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= QUESTION_LIMIT:
        return dict(message)
    half = QUESTION_LIMIT // 2
    left_out = f"\n[{len(content) - 2 * half} characters left out]\n"
    return {**message, "content": content[:half] + left_out + content[-half:]}


def _dumped(response: Any) -> Any:
    return response.model_dump(mode="json") if hasattr(response, "model_dump") else str(response)


def _finite(name: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name!r} is {number}, not a finite number")
    return number
