"""A model's provider for agent CLIs: it speaks three dialects and says what a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONING = "The answer belongs into a file."


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply: a shell command to run, the tool `add` of a server to call, or a last text.

    `status` other than 200 is a refusal.
    """

    command: str | None = None
    text: str = "All done."
    status: int = 200
    add: int | None = None


class Upstream:
    """Answers POSTs of the dialects with the script's turns, one after the other; the last one is repeated."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = list(turns)
        self.heard: list[tuple[str, dict[str, Any], dict[str, str]]] = []

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the requests that were for a reply."""
        return [body for path, body, _ in self.heard if path.partition("?")[0] in _DIALECTS]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = head.split(" ")
            self.heard.append((path, json.loads(body) if body else {}, headers))
            status, kind, answer = self._answer(path.partition("?")[0])
            sent = b"" if method == "HEAD" else answer
            writer.write(
                f"HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
                + sent
            )
            await writer.drain()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path.endswith("/count_tokens"):
            return 200, "application/json", b'{"input_tokens": 10}'
        if path not in _DIALECTS:
            return 200, "application/json", b'{"object": "list", "data": [], "models": []}'
        turn = self._turns[0]
        if len(self._turns) > 1:
            del self._turns[0]
        body = self.heard[-1][1]
        if turn.status != 200:
            error = {"type": "invalid_request_error", "message": turn.text, "code": None, "param": None}
            return turn.status, "application/json", json.dumps({"type": "error", "error": error}).encode()
        events = _DIALECTS[path](turn, body, len(self.heard))
        if not body.get("stream"):
            return 200, "application/json", json.dumps(events[0][1]).encode()
        return 200, "text/event-stream", b"".join(_event(name, data) for name, data in events)


Events = Sequence[tuple[str, Mapping[str, Any]]]


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _chat(turn: Turn, body: Mapping[str, Any], number: int) -> Events:
    assert not body.get("stream")
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.command is not None:
        function = {"name": "bash", "arguments": json.dumps({"command": turn.command})}
        message |= {"content": REASONING, "tool_calls": [{"id": f"call_{number}", "type": "function"}]}
        message["tool_calls"][0]["function"] = function
    choice = {"index": 0, "finish_reason": "tool_calls" if turn.command else "stop", "message": message}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    whole = {"id": f"chat_{number}", "object": "chat.completion", "created": 1, "model": body["model"]}
    return [("", {**whole, "choices": [choice], "usage": usage})]


def _responses(turn: Turn, body: Mapping[str, Any], number: int) -> Events:
    if turn.add is not None:
        (space,) = [tool["name"] for tool in body["tools"] if str(tool.get("name")).startswith("mcp__")]
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        output = [{**call, "name": "add", "namespace": space, "arguments": json.dumps({"amount": turn.add})}]
    elif turn.command is None:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output = [{**message, "content": content}]
    else:
        tools = {str(tool.get("name")) for tool in body["tools"]}
        name, key = ("exec_command", "cmd") if "exec_command" in tools else ("shell_command", "command")
        assert name in tools
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        output = [
            {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": REASONING}]},
            {**call, "name": name, "arguments": json.dumps({key: turn.command})},
        ]
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 5}
    usage |= {"output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 15}
    whole = {"id": f"resp_{number}", "object": "response", "model": body["model"]}
    begun = {**whole, "status": "in_progress", "output": []}
    ended = {**whole, "status": "completed", "output": output, "usage": usage}
    events: list[tuple[str, Mapping[str, Any]]] = [("response.created", {"response": begun})]
    for index, item in enumerate(output):
        for kind in ("added", "done"):
            events.append((f"response.output_item.{kind}", {"output_index": index, "item": item}))
    events.append(("response.completed", {"response": ended}))
    return [(name, {"type": name, "sequence_number": at, **data}) for at, (name, data) in enumerate(events)]


def _messages(turn: Turn, body: Mapping[str, Any], number: int) -> Events:
    blocks: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": REASONING if turn.command else turn.text})
    ]
    if turn.add is not None:
        (name,) = [tool["name"] for tool in body["tools"] if tool["name"].startswith("mcp__") and "add" in tool["name"]]
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": json.dumps({"amount": turn.add})}))
    elif turn.command is not None:
        arguments = json.dumps({"command": turn.command, "description": "Write the answer"})
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": arguments}))
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    stop = {"stop_reason": "tool_use" if len(blocks) > 1 else "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        content = [{**begun, **_said(delta)} for begun, delta in blocks]
        return [("", {**message, **stop, "content": content, "usage": {"input_tokens": 10, "output_tokens": 5}})]
    events: list[tuple[str, Mapping[str, Any]]] = [("message_start", {"message": message})]
    for index, (begun, delta) in enumerate(blocks):
        events.append(("content_block_start", {"index": index, "content_block": begun}))
        events.append(("content_block_delta", {"index": index, "delta": delta}))
        events.append(("content_block_stop", {"index": index}))
    events.append(("message_delta", {"delta": stop, "usage": {"output_tokens": 5}}))
    events.append(("message_stop", {}))
    return [(name, {"type": name, **data}) for name, data in events]


def _said(delta: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a block holds once its only delta has come."""
    return {"text": delta["text"]} if "text" in delta else {"input": json.loads(delta["partial_json"])}


_DIALECTS = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}
