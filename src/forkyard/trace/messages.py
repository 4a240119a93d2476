"""Messages: dictionaries in the shape of OpenAI chat completions, which every part of the field can read.

{"role": "system" | "user", "content": str | [part]}
{"role": "assistant", "content": str | None, "reasoning_content"?: str, "tool_calls"?: [tool call]}
{"role": "tool", "tool_call_id": str, "content": str | [part]}
tool call: {"id": str, "type": "function", "function": {"name": str, "arguments": JSON text}}
part: {"type": "text", "text": str} | {"type": "image_url", "image_url": {"url": str}}

The messages of a trace can be read by attribute too (`message.role`, `message.content`), and have a class for each
role, so that code of tasks can ask what a message is with `isinstance`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, SupportsIndex, TypeVar, overload

from forkyard.trace.fields import Fields

Message = dict[str, Any]
Messages = list[Message]

T = TypeVar("T", bound=Fields)
_MEANING = ("role", "content", "reasoning_content", "tool_call_id", "provider_state")


class AnyMessage(Fields):
    """A message of any role."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"content", "name", "reasoning_content", "provider_state"})

    @property
    def text(self) -> str:
        """The text of its content, "" when there is none."""
        return text_of(self.get("content"))


class SystemMessage(AnyMessage):
    """What the conversation stands under."""

    def __init__(self, content: Any = "", **fields: Any) -> None:
        super().__init__({**fields, "role": "system", "content": content})


class UserMessage(AnyMessage):
    """What the agent is told."""

    def __init__(self, content: Any = "", **fields: Any) -> None:
        super().__init__({**fields, "role": "user", "content": content})


class TextContentPart(Fields):
    """Text as a part of a message's content."""

    def __init__(self, text: str) -> None:
        super().__init__({"type": "text", "text": text})


class ImageUrlSource(Fields):
    """Where an image is: a URL, also one that holds the image itself (data:)."""

    def __init__(self, url: str) -> None:
        super().__init__({"url": url})


class ImageUrlContentPart(Fields):
    """An image as a part of a message's content."""

    def __init__(self, image_url: Mapping[str, Any]) -> None:
        super().__init__({"type": "image_url", "image_url": dict(image_url)})


class ToolCall(Fields):
    """One call of a tool as a model asks for it; `arguments` is JSON text."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"namespace"})

    def __init__(self, id: str, name: str, arguments: str, **fields: Any) -> None:
        super().__init__(
            {"id": id, "type": "function", **fields, "function": {"name": name, "arguments": arguments}},
        )

    @property
    def name(self) -> str:
        """The tool's name."""
        return str(self.get("function", {}).get("name", ""))

    @property
    def arguments(self) -> str:
        """Its arguments as the model wrote them."""
        return str(self.get("function", {}).get("arguments", ""))


class Tool(Fields):
    """A tool as a model is told of it, in the shape of chat completions."""

    def __init__(self, name: str, description: str = "", parameters: Mapping[str, Any] | None = None) -> None:
        function = {"name": name, "description": description, "parameters": dict(parameters or {})}
        super().__init__({"type": "function", "function": function})

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.get("function", {}).get("name", ""))

    @property
    def description(self) -> str:
        """What the model is told of it."""
        return str(self.get("function", {}).get("description", ""))

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return dict(self.get("function", {}).get("parameters") or {})

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Tool:
        """The same tool as an object, or the object itself."""
        return spec if isinstance(spec, cls) else _as(cls, spec)


class AssistantMessage(AnyMessage):
    """What a model said."""

    def __init__(
        self, content: str | None = None, tool_calls: Sequence[Mapping[str, Any]] | None = None, **fields: Any
    ) -> None:
        super().__init__({**fields, "role": "assistant", "content": content})
        if tool_calls:
            self["tool_calls"] = [dict(call) for call in tool_calls]

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The calls it makes, None when it makes none."""
        return [_as(ToolCall, call) for call in self.get("tool_calls") or ()] or None


class ToolMessage(AnyMessage):
    """What a tool answered."""

    def __init__(self, tool_call_id: str, content: Any = "", **fields: Any) -> None:
        super().__init__({**fields, "role": "tool", "tool_call_id": tool_call_id, "content": content})


_CLASSES: dict[Any, type[AnyMessage]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def typed(message: Mapping[str, Any]) -> AnyMessage:
    """A message as an object of its role's class: itself when it is one, otherwise a copy."""
    return message if isinstance(message, AnyMessage) else _as(_CLASSES.get(message.get("role"), AnyMessage), message)


def _as(cls: type[T], fields: Mapping[str, Any]) -> T:
    made = cls.__new__(cls)
    made.update(fields)
    return made


class Talk(Messages):
    """A list of messages that gives each the class of its role."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        super().__init__(map(typed, messages))

    def append(self, message: Message) -> None:
        """Add a message at the end."""
        super().append(typed(message))

    def extend(self, messages: Iterable[Message]) -> None:
        """Add messages at the end."""
        super().extend(map(typed, messages))

    def insert(self, at: SupportsIndex, message: Message) -> None:
        """Add a message in front of another."""
        super().insert(at, typed(message))

    def __iadd__(self, messages: Iterable[Message]) -> Self:  # type: ignore[override, misc]
        self.extend(messages)
        return self

    @overload
    def __setitem__(self, at: SupportsIndex, value: Message, /) -> None: ...
    @overload
    def __setitem__(self, at: slice, value: Iterable[Message], /) -> None: ...
    def __setitem__(self, at: Any, value: Any, /) -> None:
        super().__setitem__(at, list(map(typed, value)) if isinstance(at, slice) else typed(value))


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def tool_result(call_id: str, content: str) -> Message:
    """The answer to one tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def text_of(content: Any) -> str:
    """The text in a message's content: a string, or a list of parts; "" for none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def message_key(message: Mapping[str, Any]) -> str:
    """What two messages must share to be the same for a model.

    Reasoning counts. What is empty does not, nor how the JSON of a tool call's arguments is spaced and ordered, nor
    what only the wire is told (cache marks, refusals that are null).
    """
    parts: dict[str, Any] = {name: message[name] for name in _MEANING if message.get(name)}
    if "content" in parts and not isinstance(parts["content"], str):
        parts["content"] = _plain_content(parts["content"])
    if calls := message.get("tool_calls"):
        parts["tool_calls"] = [_call_key(call) for call in calls]
    return json.dumps(parts, sort_keys=True, default=str)


def _plain_content(content: Any) -> Any:
    parts = [{key: value for key, value in part.items() if key != "cache_control"} for part in content]
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def _call_key(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    return [call.get("id"), call.get("namespace"), function.get("name"), canonical_arguments(function.get("arguments"))]


def canonical_arguments(arguments: Any) -> Any:
    """Arguments of a tool call in one spelling; text that is no JSON stays as it is."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return arguments
