"""Turning what an agent CLI tells of itself into messages, as it happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from forkyard.trace import Trace, messages


class Narrator(Protocol):
    """Understands the events of one CLI, for one rollout.

    `finished` is true once the CLI has said that it is done, `failed` says why when it was not well. `hear` may
    raise what reading a value of an unexpected shape raises: the event is then left out.
    """

    finished: bool
    failed: str | None

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        ...


class Narration:
    """Adds to a trace what a model says and calls, and what its tools answer.

    What is said and called in one go is one message; it ends with a tool's answer, or with `close`.
    """

    def __init__(self, trace: Trace) -> None:
        self._messages = trace.messages
        self._open = False

    def think(self, text: str) -> None:
        """Add reasoning."""
        self._add("reasoning_content", text)

    def say(self, text: str) -> None:
        """Add text."""
        self._add("content", text)

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """Add a tool call; arguments that are no text are written as JSON."""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        self._message().setdefault("tool_calls", []).append(call)

    def answer(self, call_id: str, text: str) -> None:
        """Add a tool's answer."""
        self.close()
        self._messages.append(messages.tool_result(call_id, text))

    def close(self) -> None:
        """End the model's message: what it says next is another."""
        self._open = False

    def _add(self, part: str, text: str) -> None:
        if text:
            message = self._message()
            before = message.get(part)
            message[part] = f"{before}\n\n{text}" if before else text

    def _message(self) -> dict[str, Any]:
        if not self._open:
            self._messages.append({"role": "assistant", "content": None})
            self._open = True
        return self._messages[-1]


def text_in(content: Any) -> str:
    """The text of content as any dialect has it: a string, or a list of parts with texts."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""
