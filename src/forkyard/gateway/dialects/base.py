"""What a dialect is, and the values it reads requests and replies into.

Requests come from programs in sandboxes and replies from providers: whatever they hold, reading gives a value or a
ValueError with one sentence.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from forkyard.model import Sampling, ToolSpec
from forkyard.trace import Message, Usage

Body = dict[str, Any]
"""A request or a reply as JSON."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it is read: the conversation in the shape of chat completions, and the parameters beside it.

    `places` says for each message where the dialect finds it in the body again.
    """

    messages: list[Message]
    tools: list[ToolSpec]
    params: dict[str, Any]
    streamed: bool = False
    max_output: int | None = None
    choices: int = 1
    places: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply as it is read. `written` of the input's tokens were put into the provider's cache, at their own price."""

    message: Message | None
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    written: int = 0
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class Assembler(ABC):
    """Puts the events of one streamed reply together.

    `ended` says that its last event has come, `failed` is the error the provider told of in the middle.
    """

    def __init__(self) -> None:
        self.ended = False
        self.failed: Any = None

    @property
    def whole(self) -> bool:
        """Whether everything that belongs to the reply has come."""
        return self.ended

    @abstractmethod
    def add(self, event: Body) -> None:
        """Take one event. Raises AttributeError, TypeError, KeyError or ValueError when it is none."""

    @abstractmethod
    def so_far(self) -> Body:
        """The reply as it would have come whole, as far as it has come."""


class Dialect(Protocol):
    """One API of models: how its requests and replies are read, and how it says that something is wrong."""

    name: ClassVar[str]
    path: ClassVar[str]
    auth: ClassVar[str]
    """How a key is sent when neither the upstream nor the client's own says how: "bearer" or "x-api-key"."""
    output_limits: ClassVar[tuple[str, ...]]
    """The members that bound a reply's tokens; the first is set when there is none."""

    def read_request(self, body: Body) -> Asked:
        """The request in a body."""
        ...

    def read_reply(self, body: Any) -> Answered:
        """The reply in a body. Raises ValueError when it is none."""
        ...

    def assembler(self) -> Assembler:
        """For one streamed reply."""
        ...

    def sampled(self, body: Body, sampling: Sampling) -> Body:
        """The members that a run's sampling puts in the place of the client's."""
        ...

    def error(self, status: int, message: str, code: str) -> bytes:
        """The body of an error."""
        ...

    def retold(self, body: Body, asked: Asked, contents: Mapping[int, str]) -> Body:
        """The members of a request's body in which some user's messages and tool results have another text."""
        ...

    def resaid(self, body: Body, said: str) -> Body:
        """A reply's body in which the model has said this text and nothing else."""
        ...

    def streamed(self, body: Body, usage: bool) -> bytes:
        """A reply that is text alone as its events; `usage` says whether they tell it."""
        ...


def event(data: Body | str, name: str | None = None) -> bytes:
    """A server-sent event."""
    shown = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {shown}\n\n".encode()


def plain_sampling(sampling: Sampling) -> Body:
    """A sampling as members under their own names, those left out that are the provider's choice."""
    values = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    return {name: value for name, value in values.items() if value is not None} | dict(sampling.extra)


def sampled_within(body: Body, sampling: Sampling, limit: str, holder: str) -> Body:
    """A sampling's members where the bound of tokens is called `limit`, and the effort lies in the table `holder`."""
    changed = plain_sampling(sampling)
    if sampling.max_tokens is not None:
        changed[limit] = sampling.max_tokens
    if "reasoning_effort" in changed:
        given = body.get(holder)
        held = given if isinstance(given, dict) else {}
        changed[holder] = held | {"effort": changed.pop("reasoning_effort")}
    return changed


def beside(body: Body, *conversation: str) -> dict[str, Any]:
    """The parameters of a request that are not the conversation."""
    return {name: value for name, value in body.items() if name not in conversation}


def bound(value: Any) -> int | None:
    """A bound of tokens as a request gives it."""
    return value if type(value) is int and value > 0 else None


def objects(value: Any) -> Iterable[Mapping[str, Any]]:
    """The objects of a list; of anything else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def parts(content: Any) -> Any:
    """Content as messages have it: a text, None, or a list of objects; one text alone is that text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return text(content)
    found = [part if isinstance(part, dict) else {"type": "text", "text": text(part)} for part in content]
    cleaned = [{key: value for key, value in part.items() if key != "cache_control"} for part in found]
    only = cleaned[0] if len(cleaned) == 1 else {}
    return only["text"] if only.keys() == {"type", "text"} and isinstance(only["text"], str) else cleaned


def call(identifier: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in the shape of chat completions."""
    function = {"name": text(name), "arguments": text(arguments)}
    return {"id": text(identifier or ""), "type": "function", "function": function}


def assistant(texts: Iterable[str], reasoning: Iterable[str], calls: list[dict[str, Any]]) -> Message:
    """An assistant's message, without what is empty."""
    said, thought = "".join(texts), "\n".join(reasoning)
    message: Message = {"role": "assistant", "content": said or None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message
