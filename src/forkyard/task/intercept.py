"""What stands between an agent and its model, as a task's `@stop` and `@intercept` methods see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from forkyard.trace import AnyMessage, AssistantMessage, Tool, Usage, typed


class Request(BaseModel):
    """What an agent is about to ask its model. An interceptor returns a copy with other messages.

    Only what is new may differ: user's messages and tool results that no earlier request held.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages: list[AnyMessage]
    tools: list[Tool] | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _typed(cls, messages: Any) -> list[AnyMessage]:
        return [typed(message) for message in messages]

    @field_validator("tools", mode="before")
    @classmethod
    def _objects(cls, tools: Any) -> list[Tool] | None:
        return None if tools is None else [Tool.of(tool) for tool in tools]


class Response(BaseModel):
    """What a model answered. An interceptor returns a copy with another message: plain text, without tool calls."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    message: AssistantMessage
    finish_reason: str | None = None
    model: str = ""
    usage: Usage | None = None

    @field_validator("message", mode="before")
    @classmethod
    def _assistants(cls, message: Mapping[str, Any]) -> AnyMessage:
        return typed({**message, "role": "assistant"})
