"""OpenAI chat completions, and everybody who speaks like them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from forkyard.gateway.dialects.base import (
    Answered,
    Asked,
    Assembler,
    Body,
    beside,
    bound,
    call,
    event,
    objects,
    parts,
    plain_sampling,
    text,
)
from forkyard.model import Sampling
from forkyard.model.completion import CompletionStream, completion_of
from forkyard.trace import Message
from forkyard.values import new_id

_ROLES = {"developer": "system", "function": "tool"}


class ChatDialect:
    """POST /v1/chat/completions."""

    name: ClassVar[str] = "chat"
    path: ClassVar[str] = "/chat/completions"
    auth: ClassVar[str] = "bearer"
    output_limits: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")

    def read_request(self, body: Body) -> Asked:
        """The request in a body (see `Dialect`)."""
        return Asked(
            messages=[_message(message) for message in objects(body.get("messages"))],
            tools=list(objects(body.get("tools"))),
            params=beside(body, "messages", "tools"),
            streamed=body.get("stream") is True,
            max_output=next((limit for name in self.output_limits if (limit := bound(body.get(name)))), None),
            choices=bound(body.get("n")) or 1,
        )

    def read_reply(self, body: Any) -> Answered:
        """The reply in a body (see `Dialect`)."""
        read = completion_of(body)
        return Answered(
            read.message,
            read.usage,
            read.finish_reason,
            prompt_token_ids=read.prompt_token_ids,
            token_ids=read.token_ids,
            logprobs=read.logprobs,
        )

    def assembler(self) -> Assembler:
        """For one streamed reply."""
        return _Chunks()

    def sampled(self, body: Body, sampling: Sampling) -> Body:
        """The members a run's sampling replaces; the bound of tokens under the name the client uses."""
        changed = plain_sampling(sampling)
        if sampling.max_tokens is not None:
            names = [name for name in self.output_limits if name in body] or ["max_tokens"]
            changed |= dict.fromkeys(names, sampling.max_tokens)
        return changed

    def error(self, status: int, message: str, code: str) -> bytes:
        """The body of an error."""
        return openai_error(status, message, code)

    def retold(self, body: Body, asked: Asked, contents: Mapping[int, str]) -> Body:
        """Members with other texts (see `Dialect`)."""
        messages = list(objects(body.get("messages")))
        for index, content in contents.items():
            messages[index] = {**messages[index], "content": content}
        return {"messages": messages}

    def resaid(self, body: Body, said: str) -> Body:
        """A reply's body with another text."""
        message = {"role": "assistant", "content": said}
        return body | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    def streamed(self, body: Body, usage: bool) -> bytes:
        """A reply of text as its chunks."""
        head = {"id": body.get("id") or f"chatcmpl-{new_id()}", "object": "chat.completion.chunk"}
        head |= {"created": body.get("created") or int(time.time()), "model": body.get("model") or ""}
        choice = body["choices"][0]
        told: list[Body] = [
            {"choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        ]
        if usage:
            told.append({"choices": [], "usage": body.get("usage")})
        return b"".join([*(event(head | chunk) for chunk in told), event("[DONE]")])


def openai_error(status: int, message: str, code: str) -> bytes:
    """An error as OpenAI's APIs tell it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


class _Chunks(Assembler):
    def __init__(self) -> None:
        super().__init__()
        self._stream = CompletionStream()

    @property
    def whole(self) -> bool:
        return self._stream.finish_reason is not None

    def add(self, event: Body) -> None:
        if event.get("error"):
            self.failed = event["error"]
        else:
            self._stream.add(event)

    def so_far(self) -> Body:
        return self._stream.so_far()


def _message(given: Any) -> Message:
    """A message as a client sends it, without nulls and with every part in its place."""
    message = {str(key): value for key, value in given.items() if value is not None and value != []}
    role = text(message.get("role") or "user")
    message["role"] = _ROLES.get(role, role)
    message["content"] = parts(message.get("content"))
    if calls := list(objects(message.pop("tool_calls", None))):
        message["tool_calls"] = [_call(item) for item in calls]
    for name in ("reasoning_content", "tool_call_id", "name"):
        if name in message:
            message[name] = text(message[name])
    return message


def _call(given: Any) -> dict[str, Any]:
    held = given.get("function") or given.get("custom")
    function = held if isinstance(held, dict) else {}
    return call(given.get("id"), function.get("name"), function.get("arguments", function.get("input", "")))
