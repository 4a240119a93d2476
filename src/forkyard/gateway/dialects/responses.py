"""OpenAI responses: a conversation of items, of which several make one message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from forkyard.gateway.dialects.base import (
    Answered,
    Asked,
    Assembler,
    Body,
    assistant,
    beside,
    bound,
    call,
    event,
    objects,
    parts,
    sampled_within,
    text,
)
from forkyard.gateway.dialects.chat import openai_error
from forkyard.model import Sampling, ToolSpec
from forkyard.model.completion import count, numbers
from forkyard.trace import Message, Usage
from forkyard.values import new_id

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesDialect:
    """POST /v1/responses."""

    name: ClassVar[str] = "responses"
    path: ClassVar[str] = "/responses"
    auth: ClassVar[str] = "bearer"
    output_limits: ClassVar[tuple[str, ...]] = ("max_output_tokens",)

    def read_request(self, body: Body) -> Asked:
        """The request in a body (see `Dialect`)."""
        system = body.get("instructions")
        opening: list[Message] = [{"role": "system", "content": system}] if isinstance(system, str) else []
        told, places = _messages(_items(body))
        return Asked(
            messages=opening + told,
            places=[-1] * len(opening) + places,
            tools=[_tool(tool) for tool in objects(body.get("tools"))],
            params=beside(body, "input", "instructions", "tools"),
            streamed=body.get("stream") is True,
            max_output=bound(body.get("max_output_tokens")),
        )

    def read_reply(self, body: Any) -> Answered:
        """The reply in a body (see `Dialect`)."""
        if not isinstance(body, dict) or not isinstance(body.get("output"), list):
            raise ValueError("it holds no output")
        if body.get("error"):
            raise ValueError(f"it reports an error: {json.dumps(body['error'])}")
        said = [message for message in _messages(objects(body["output"]))[0] if message["role"] == "assistant"]
        usage = body.get("usage")
        details = body.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else body.get("status")
        return Answered(
            said[-1] if said else None,
            Usage(
                input=count(usage, "input_tokens"),
                output=count(usage, "output_tokens"),
                cached=count(usage, "input_tokens_details", "cached_tokens"),
                reasoning=count(usage, "output_tokens_details", "reasoning_tokens"),
            ),
            reason if isinstance(reason, str) else None,
            logprobs=_logprobs(body["output"]),
        )

    def assembler(self) -> Assembler:
        """For one streamed reply."""
        return _Events()

    def sampled(self, body: Body, sampling: Sampling) -> Body:
        """The members a run's sampling replaces."""
        return sampled_within(body, sampling, "max_output_tokens", "reasoning")

    def error(self, status: int, message: str, code: str) -> bytes:
        """The body of an error."""
        return openai_error(status, message, code)

    def retold(self, body: Body, asked: Asked, contents: Mapping[int, str]) -> Body:
        """Members with other texts (see `Dialect`)."""
        items = _items(body)
        for index, content in contents.items():
            place = asked.places[index]
            name = "output" if text(items[place].get("type") or "").endswith("_output") else "content"
            items[place] = {**items[place], name: content}
        return {"input": items}

    def resaid(self, body: Body, said: str) -> Body:
        """A reply's body with another text."""
        part = {"type": "output_text", "text": said, "annotations": []}
        item = {"type": "message", "id": f"msg_{new_id()}", "status": "completed", "role": "assistant"}
        whole = {"output": [item | {"content": [part]}], "status": "completed", "incomplete_details": None}
        return body | whole

    def streamed(self, body: Body, usage: bool) -> bytes:
        """A reply of text as its events."""
        (item,) = body["output"]
        (part,) = item["content"]
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        begun = body | {"status": "in_progress", "output": [], "usage": None}
        empty = item | {"status": "in_progress", "content": []}
        told: list[Body] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": empty},
            {"type": "response.content_part.added", **at, "part": part | {"text": ""}},
            {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []},
            {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **at, "part": part},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": body},
        ]
        return b"".join(event(one | {"sequence_number": number}, one["type"]) for number, one in enumerate(told))


class _Events(Assembler):
    """The last event holds the whole response; until it comes, the items that are done stand for it."""

    def __init__(self) -> None:
        super().__init__()
        self._response: Body = {}
        self._items: list[Any] = []

    def add(self, event: Body) -> None:
        kind = event.get("type")
        if kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind == "error":
            self.failed = event.get("error") or event.get("message") or event
        elif isinstance(response := event.get("response"), dict):
            self._response = response
            self.ended = kind in _ENDS
            self.failed = response.get("error") or self.failed

    def so_far(self) -> Body:
        return self._response | {"output": self._response.get("output") or self._items, "error": None}


@dataclass(slots=True)
class _Said:
    """The items of one message of the assistant."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def take(self, item: Mapping[str, Any], kind: str) -> bool:
        """Whether the item is something the assistant said."""
        if kind == "message" and item.get("role") == "assistant":
            self.texts += _texts(item.get("content"))
        elif kind == "reasoning":
            self.thoughts += _texts(item.get("summary")) + _texts(item.get("content"))
        elif kind.endswith("_call"):
            self.calls.append(_call(item, kind))
        else:
            return False
        return True


def _items(body: Body) -> list[Mapping[str, Any]]:
    """The conversation of a request; a text alone is what the user says."""
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(objects(given))


def _messages(items: Iterable[Mapping[str, Any]]) -> tuple[list[Message], list[int]]:
    """The messages that items make, and where each has its item: what an assistant says in a row is one message."""
    found: list[Message] = []
    places: list[int] = []
    said: _Said | None = None
    for place, item in enumerate([*items, {}]):
        kind = text(item.get("type") or "message")
        fresh = said or _Said()
        if fresh.take(item, kind):
            said = fresh
            continue
        if said is not None:
            found.append(assistant(said.texts, said.thoughts, said.calls))
            places.append(-1)
            said = None
        if item:
            found.append(_other(item, kind))
            places.append(place)
    return found, places


def _other(item: Mapping[str, Any], kind: str) -> Message:
    if kind == "message":
        role = text(item.get("role") or "user")
        return {"role": "system" if role == "developer" else role, "content": _content(item.get("content"))}
    if kind.endswith("_output"):
        return {
            "role": "tool",
            "tool_call_id": text(item.get("call_id") or ""),
            "content": _content(item.get("output")),
        }
    return {"role": "user", "content": text(dict(item))}


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return parts(content)
    return parts([_part(part) if isinstance(part, dict) else part for part in content])


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": text(part.get("text", ""))}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [text(part.get("text", part.get("refusal", ""))) for part in objects(content)]


def _call(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    identifier = item.get("call_id") or item.get("id")
    if kind in ("function_call", "custom_tool_call"):
        return call(identifier, item.get("name") or "", item.get("arguments", item.get("input", "")))
    rest = {name: value for name, value in item.items() if name not in ("id", "call_id", "type", "status")}
    return call(identifier, kind, json.dumps(rest))


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    if tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _logprobs(output: Any) -> list[float] | None:
    told = [
        token.get("logprob")
        for item in objects(output)
        for part in objects(item.get("content"))
        for token in objects(part.get("logprobs"))
    ]
    return numbers(told) if told else None
