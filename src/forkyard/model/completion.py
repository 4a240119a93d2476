"""A chat completion as it came over the wire, turned into a message, a finish reason and a usage.

Providers leave fields out, fill them with null, or stream although nobody asked for it; what cannot be read as a
reply raises ValueError with one sentence that says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from forkyard.trace import Message, Usage
from forkyard.values import new_id


@dataclass(frozen=True, slots=True)
class Completion:
    """One read reply. Token ids and log probabilities are the provider's own, when it returned them."""

    message: Message
    usage: Usage
    finish_reason: str | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class ReportedError(ValueError):
    """The body tells of an error instead of holding a reply."""

    def __init__(self, error: Any) -> None:
        super().__init__("it reports an error")
        self.error = error


def read_completion(body: str, streamed: bool) -> Completion:
    """The reply in a body of JSON, or of server-sent events. Raises ValueError."""
    return completion_of(_join(body) if streamed else _json(body))


def completion_of(content: Any) -> Completion:
    """The reply in a chat completion that was parsed already. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError("its body is not a JSON object")
    choices = content.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for holder in (choice, content):
        if isinstance(holder, dict) and holder.get("error"):
            raise ReportedError(holder["error"])
    if not isinstance(choice, dict):
        raise ValueError("it holds no choices")
    reason = choice.get("finish_reason")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError(f"it holds no message (finish_reason {reason!r})")
    return Completion(
        message_of(message),
        read_usage(content.get("usage")),
        reason if isinstance(reason, str) else None,
        numbers(choice.get("prompt_token_ids") or content.get("prompt_token_ids")),
        numbers(choice.get("token_ids")),
        _logprobs(choice.get("logprobs")),
    )


def numbers(value: Any) -> list[Any] | None:
    """A list of numbers, or None for anything else."""
    plain = isinstance(value, list) and all(type(item) in (int, float) for item in value)
    return value if plain else None


def _logprobs(value: Any) -> list[float] | None:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None
    return numbers([token.get("logprob") if isinstance(token, dict) else None for token in content])


def read_usage(usage: Any) -> Usage:
    """Token counts as far as the provider told them; what it did not tell is 0."""
    return Usage(
        input=count(usage, "prompt_tokens"),
        output=count(usage, "completion_tokens"),
        cached=count(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning=count(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def message_of(received: dict[str, Any]) -> Message:
    """The message as received, without nulls and empty lists, which providers refuse to be sent back."""
    message = {"role": "assistant"} | {key: item for key, item in received.items() if item is not None and item != []}
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("its tool_calls are not a list of objects")
    # A result names its call by id, so a call without one is given one.
    message["tool_calls"] = [
        {key: item for key, item in call.items() if item is not None} | {"id": call.get("id") or f"call_{new_id()}"}
        for call in calls
    ]
    return message


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"its body is not JSON: {body[:200]!r}") from None


def count(usage: Any, *path: str) -> int:
    """One count of a provider's usage by the path of its keys; what is not told, or no count, is 0."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(usage, bool) or not isinstance(usage, int | float):
        return 0
    return max(int(usage), 0) if abs(usage) < 1e15 else 0


@dataclass(slots=True)
class _CallPieces:
    id: str | None = None
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def add(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        self.id = piece.get("id") or self.id
        self.names.append(function.get("name") or "")
        self.arguments.append(function.get("arguments") or "")

    def joined(self) -> dict[str, Any]:
        function = {"name": "".join(self.names), "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class CompletionStream:
    """What the chunks of a streamed reply add up to; of several choices the first."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, _CallPieces] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Any = None
    prompt_token_ids: Any = None
    token_ids: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    head: dict[str, Any] = field(default_factory=dict)

    def add(self, chunk: dict[str, Any]) -> None:
        """Take one more chunk. Raises AttributeError, TypeError or KeyError when it is none."""
        self.head = self.head or {name: chunk.get(name) for name in ("id", "created", "model")}
        self.usage = chunk.get("usage") or self.usage
        self.prompt_token_ids = chunk.get("prompt_token_ids") or self.prompt_token_ids
        for choice in chunk.get("choices") or []:
            if choice.get("index"):
                continue
            self._add_delta(choice.get("delta") or {})
            self.token_ids += choice.get("token_ids") or []
            self.logprobs += (choice.get("logprobs") or {}).get("content") or []
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name, piece in delta.items():
            if name == "tool_calls":
                for position, call in enumerate(piece or []):
                    self.calls.setdefault(call.get("index", position), _CallPieces()).add(call)
            elif isinstance(piece, str) and name != "role":
                self.texts.setdefault(name, []).append(piece)
            elif isinstance(piece, list):
                self.others.setdefault(name, []).extend(piece)
            elif piece is not None and name != "role":
                self.others[name] = piece

    def completion(self) -> dict[str, Any]:
        """The same as a reply that was not streamed. Raises ValueError when the reply has not come to its end."""
        if self.finish_reason is None:
            raise ValueError("its stream ended in the middle of the reply")
        return self.so_far()

    def so_far(self) -> dict[str, Any]:
        """As far as it has come."""
        texts = {name: "".join(pieces) for name, pieces in self.texts.items()}
        calls = [self.calls[at].joined() for at in sorted(self.calls)]
        message = {"role": "assistant", **texts, **self.others, "tool_calls": calls}
        choice: dict[str, Any] = {"message": message, "finish_reason": self.finish_reason}
        if self.token_ids:
            choice["token_ids"] = self.token_ids
        if self.logprobs:
            choice["logprobs"] = {"content": self.logprobs}
        return self.head | {"choices": [choice], "usage": self.usage, "prompt_token_ids": self.prompt_token_ids}


def _join(body: str) -> dict[str, Any]:
    stream = CompletionStream()
    try:
        for chunk in _chunks(body):
            if chunk.get("error"):
                return chunk
            stream.add(chunk)
    except (AttributeError, TypeError, KeyError):
        raise ValueError("its stream holds pieces that are not chunks of a chat completion") from None
    return stream.completion()


def _chunks(body: str) -> Iterator[dict[str, Any]]:
    for line in body.split("\n"):  # not splitlines: texts may hold U+2028 and the like
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield _json(data)
