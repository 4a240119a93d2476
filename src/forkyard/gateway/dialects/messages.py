"""Anthropic messages: content in blocks, tool results in the user's message."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from forkyard.model import Sampling, ToolSpec
from forkyard.model.completion import count
from forkyard.trace import Message, Usage

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class MessagesDialect:
    """POST /v1/messages."""

    name: ClassVar[str] = "messages"
    path: ClassVar[str] = "/messages"
    auth: ClassVar[str] = "x-api-key"
    output_limits: ClassVar[tuple[str, ...]] = ("max_tokens",)

    def read_request(self, body: Body) -> Asked:
        """The request in a body (see `Dialect`)."""
        messages: list[Message] = []
        places: list[tuple[int, int | None]] = []
        if body.get("system"):
            messages.append({"role": "system", "content": parts(body["system"])})
            places.append((-1, None))
        for number, given in enumerate(objects(body.get("messages"))):
            told = _messages_of(text(given.get("role") or "user"), given.get("content"))
            messages += [message for message, _ in told]
            places += [(number, block) for _, block in told]
        return Asked(
            messages=messages,
            places=places,
            tools=[_tool(tool) for tool in objects(body.get("tools"))],
            params=beside(body, "messages", "system", "tools"),
            streamed=body.get("stream") is True,
            max_output=bound(body.get("max_tokens")),
        )

    def read_reply(self, body: Any) -> Answered:
        """The reply in a body (see `Dialect`)."""
        if not isinstance(body, dict) or not isinstance(body.get("content"), list):
            raise ValueError("it holds no content")
        usage = body.get("usage")
        written = count(usage, "cache_creation_input_tokens")
        cached = count(usage, "cache_read_input_tokens")
        reason = body.get("stop_reason")
        return Answered(
            _said(body["content"]),
            Usage(
                input=count(usage, "input_tokens") + cached + written,
                output=count(usage, "output_tokens"),
                cached=cached,
                reasoning=count(usage, "output_tokens_details", "thinking_tokens"),
            ),
            reason if isinstance(reason, str) else None,
            written,
        )

    def assembler(self) -> Assembler:
        """For one streamed reply."""
        return _Events()

    def sampled(self, body: Body, sampling: Sampling) -> Body:
        """The members a run's sampling replaces."""
        return sampled_within(body, sampling, "max_tokens", "output_config")

    def error(self, status: int, message: str, code: str) -> bytes:
        """The body of an error."""
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()

    def retold(self, body: Body, asked: Asked, contents: Mapping[int, str]) -> Body:
        """Members with other texts (see `Dialect`)."""
        given = list(objects(body.get("messages")))
        for index, content in contents.items():
            place, block = asked.places[index]
            given[place] = {**given[place], "content": _retold(given[place].get("content"), block, content)}
        return {"messages": given}

    def resaid(self, body: Body, said: str) -> Body:
        """A reply's body with another text."""
        return body | {"content": [{"type": "text", "text": said}], "stop_reason": "end_turn", "stop_sequence": None}

    def streamed(self, body: Body, usage: bool) -> bytes:
        """A reply of text as its events."""
        (block,) = body["content"]
        delta = {"type": "text_delta", "text": block["text"]}
        end = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        told: list[Body] = [
            {"type": "message_start", "message": body | {"content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": body.get("usage")},
            {"type": "message_stop"},
        ]
        return b"".join(event(one, one["type"]) for one in told)


class _Events(Assembler):
    def __init__(self) -> None:
        super().__init__()
        self._message: Body = {}
        self._blocks: dict[int, Body] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    def add(self, event: Body) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[int(event["index"])] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._add_delta(int(event["index"]), event["delta"])
        elif kind == "message_delta":
            self._message |= event.get("delta") or {}
            told = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self._message["usage"] = (self._message.get("usage") or {}) | told
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error":
            self.failed = event.get("error") or event

    def _add_delta(self, index: int, delta: Body) -> None:
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                self._pieces.setdefault((index, name), []).append(delta[name])

    def so_far(self) -> Body:
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, name), pieces in self._pieces.items():
            block = blocks.setdefault(index, {"type": "text"})
            if name == "partial_json":
                block["input"] = "".join(pieces) or block.get("input")
            else:
                block[name] = text(block.get(name) or "") + "".join(pieces)
        return self._message | {"content": [blocks[index] for index in sorted(blocks)]}


def _said(content: Any) -> Message:
    """What an assistant's blocks say."""
    texts = [text(block.get("text", "")) for block in objects(content) if block.get("type") == "text"]
    thoughts = [text(block.get("thinking", "")) for block in objects(content) if block.get("type") == "thinking"]
    calls = [
        call(block.get("id"), block.get("name") or "", block.get("input") or {})
        for block in objects(content)
        if text(block.get("type", "")).endswith("tool_use")
    ]
    return assistant(texts, thoughts, calls)


def _messages_of(role: str, content: Any) -> list[tuple[Message, int | None]]:
    """The messages in one of theirs, and their blocks: each tool result is one, what else a user says comes after."""
    if not isinstance(content, list):
        return [({"role": role, "content": parts(content)}, None)]
    if role == "assistant":
        return [(_said(content), None)]
    blocks = list(enumerate(objects(content)))
    results = [(_result(block), place) for place, block in blocks if block.get("type") == "tool_result"]
    others = [_part(block) for _, block in blocks if block.get("type") != "tool_result"]
    rest: list[tuple[Message, int | None]] = [({"role": role, "content": parts(others)}, None)] if others else []
    return [*results, *rest]


def _retold(content: Any, block: int | None, said: str) -> Any:
    """A message's content with another text: of one tool result, or of all that is none."""
    if not isinstance(content, list):
        return said
    blocks = list(objects(content))
    if block is not None:
        blocks[block] = {**blocks[block], "content": said}
        return blocks
    results = [one for one in blocks if one.get("type") == "tool_result"]
    return [*results, {"type": "text", "text": said}]


def _result(block: Mapping[str, Any]) -> Message:
    content = block.get("content")
    shown = parts([_part(part) for part in objects(content)] if isinstance(content, list) else content)
    return {"role": "tool", "tool_call_id": text(block.get("tool_use_id") or ""), "content": shown or ""}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict):
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return dict(block)


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    if "input_schema" not in tool:
        return tool
    function = {name: tool[name] for name in ("name", "description") if name in tool}
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}
