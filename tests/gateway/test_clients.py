"""The clients people use, through the gateway and straight to the provider: the same bytes up, the same values down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from forkyard.gateway import Budget
from tests.gateway.parts import TALK, stage
from tests.gateway.upstream import KEY, Play, Provider, Seen, chat_body, chat_chunks, events, providing, sse, whole

TOOL: dict[str, Any] = {"name": "bash", "description": "run", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
PIECES = [
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"comm'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": 'and": "ls"}'}}]},
]

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "provider-name",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "status": "completed",
            "name": "bash",
            "arguments": '{"command": "ls"}',
        },
    ],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 110,
    },
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "provider-name",
    "content": [
        {"type": "thinking", "thinking": "think", "signature": "s"},
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 50,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 10,
        "output_tokens": 10,
    },
}


def response_events() -> list[bytes]:
    started = RESPONSE | {"status": "in_progress", "output": [], "usage": None}
    told: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
    for place, item in enumerate(RESPONSE["output"]):
        told.append({"type": "response.output_item.added", "output_index": place, "item": item})
        if item["type"] == "message":
            part = {"item_id": "msg_1", "output_index": place, "content_index": 0}
            empty = {"type": "output_text", "text": "", "annotations": []}
            told.append({"type": "response.content_part.added", **part, "part": empty})
            told.append({"type": "response.output_text.delta", **part, "delta": "hi", "logprobs": []})
            told.append({"type": "response.output_text.done", **part, "text": "hi", "logprobs": []})
        told.append({"type": "response.output_item.done", "output_index": place, "item": item})
    told.append({"type": "response.completed", "response": RESPONSE})
    return [sse(event | {"sequence_number": at}, str(event["type"])) for at, event in enumerate(told)]


def message_events() -> list[bytes]:
    usage = MESSAGE["usage"] | {"output_tokens": 1}
    start = MESSAGE | {"content": [], "stop_reason": None, "usage": usage}
    deltas = [
        [{"type": "thinking_delta", "thinking": "think"}, {"type": "signature_delta", "signature": "s"}],
        [{"type": "text_delta", "text": "h"}, {"type": "text_delta", "text": "i"}],
        [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"command": ', '"ls"}')],
    ]
    blocks = [{"thinking": "", "signature": ""}, {"text": ""}, {"input": {}}]
    told: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for place, (block, empty) in enumerate(zip(MESSAGE["content"], blocks, strict=True)):
        told.append({"type": "content_block_start", "index": place, "content_block": block | empty})
        told += [{"type": "content_block_delta", "index": place, "delta": delta} for delta in deltas[place]]
        told.append({"type": "content_block_stop", "index": place})
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    told.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 10}})
    return [sse(event, str(event["type"])) for event in (*told, {"type": "message_stop"})]


async def chat_whole(client: Any) -> Any:
    tools = [{"type": "function", "function": TOOL}]
    return await client.chat.completions.create(model="m", messages=TALK, tools=tools, max_completion_tokens=20)


async def chat_streamed(client: Any) -> Any:
    tools = [{"type": "function", "function": TOOL}]
    asked = {"model": "m", "messages": TALK, "tools": tools, "stream_options": {"include_usage": True}}
    async with client.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_completion()


async def responses_whole(client: Any) -> Any:
    return await client.responses.create(
        model="m", input="hello", instructions="be", tools=[{"type": "function"} | TOOL]
    )


async def responses_streamed(client: Any) -> Any:
    stream = await client.responses.create(model="m", input="hello", instructions="be", stream=True)
    return [event async for event in stream]


ANTHROPIC_TOOL: dict[str, Any] = {"name": "bash", "description": "run", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 20, "messages": TALK, "system": "be", "tools": [ANTHROPIC_TOOL]}


async def messages_whole(client: Any) -> Any:
    return await client.messages.create(**ASKED)


async def messages_streamed(client: Any) -> Any:
    async with client.messages.stream(**ASKED) as stream:
        return await stream.get_final_message()


async def tokens_counted(client: Any) -> Any:
    return await client.messages.count_tokens(model="m", messages=TALK)


async def models_listed(client: Any) -> Any:
    return [model.id async for model in client.models.list()]


MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
ANTHROPIC_MODELS = {
    "data": [{"id": "m", "type": "model", "display_name": "M", "created_at": "2025-01-01T00:00:00Z"}],
    "has_more": False,
    "first_id": "m",
    "last_id": "m",
}
Asks = Callable[[Any], Awaitable[Any]]
ROWS: dict[str, tuple[str, Asks, Play]] = {
    "chat": ("openai", chat_whole, whole(chat_body(None, tool_calls=[CALL]))),
    "chat streamed": ("openai", chat_streamed, events(*chat_chunks(*PIECES, reason="tool_calls"))),
    "responses": ("openai", responses_whole, whole(RESPONSE)),
    "responses streamed": ("openai", responses_streamed, events(*response_events())),
    "messages": ("anthropic", messages_whole, whole(MESSAGE)),
    "messages streamed": ("anthropic", messages_streamed, events(*message_events())),
    "tokens": ("anthropic", tokens_counted, whole({"input_tokens": 7})),
    "models": ("openai", models_listed, whole(MODELS)),
    "anthropic models": ("anthropic", models_listed, whole(ANTHROPIC_MODELS)),
}


class Tap(httpx2.AsyncHTTPTransport):
    """Keeps the bytes that the client's side got."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await super().handle_async_request(request)
        body = b"".join([piece async for piece in reply.aiter_raw()])
        await reply.aclose()
        self.got.append(body)
        return httpx2.Response(reply.status_code, headers=reply.headers, content=body)


def client_of(kind: str, base: str, tap: Tap) -> Any:
    http = httpx2.AsyncClient(transport=tap)
    if kind == "openai":
        return openai.AsyncOpenAI(api_key=KEY, base_url=f"{base}/v1", http_client=http)
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=base, http_client=http)


HOP = ("host", "connection", "accept-encoding")


def comparable(seen: Seen) -> tuple[str, str, bytes, dict[str, str]]:
    """All of a request but for what names the connection, and the compressions, of which some are not read here."""
    headers = {name: value for name, value in seen.headers.items() if name not in HOP}
    return seen.method, seen.path, seen.body, headers


async def asked_straight(kind: str, ask: Asks, play: Play) -> tuple[Any, Tap, Provider]:
    async with providing(play) as provider:
        tap = Tap()
        async with client_of(kind, provider.url, tap) as client:
            return await ask(client), tap, provider


@pytest.mark.parametrize("name", ROWS)
async def test_a_client_cannot_tell_the_gateway_from_the_provider(name: str) -> None:
    kind, ask, play = ROWS[name]
    straight, straight_tap, straight_provider = await asked_straight(kind, ask, play)
    async with stage(play) as at:
        tap = Tap()
        async with client_of(kind, at.url, tap) as client:
            through = await ask(client)
    assert through == straight
    assert [comparable(seen) for seen in at.provider.seen] == [comparable(seen) for seen in straight_provider.seen]
    assert tap.got == straight_tap.got == at.provider.sent
    if "models" in name or name == "tokens":
        assert at.trace.calls == []  # nothing a model said
        return
    call, reply = at.call, at.trace.graph.nodes[-1]
    assert (call.usage.input, call.usage.output, call.error) == (100, 10, None)
    assert reply.message["tool_calls"][0]["function"]["name"] == "bash"
    assert at.trace.graph.nodes[-2].message["content"] == "hello"
    if not name.startswith("chat"):
        assert (call.usage.cached, reply.message["content"], reply.message["reasoning_content"]) == (40, "hi", "think")


@pytest.mark.parametrize(
    ("kind", "ask"), [("openai", chat_whole), ("openai", responses_whole), ("anthropic", messages_whole)]
)
async def test_clients_take_a_refusal_for_final(kind: str, ask: Asks) -> None:
    async with stage(budget=Budget(calls=0)) as at:
        tap = Tap()
        async with client_of(kind, at.url, tap) as client:
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="rollout stopped: budget"):
                await ask(client)
    assert len(tap.got) == 1 and at.provider.seen == []


async def test_a_whole_conversation_is_one_branch_in_every_dialect() -> None:
    """What a client sends back of a reply is known again, in whatever form the dialect has for it."""
    rows: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
        (
            "/v1/chat/completions",
            {"messages": TALK},
            {
                "messages": [
                    *TALK,
                    {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "x"},
                ]
            },
            chat_body(None, tool_calls=[CALL]),
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
            {
                "input": [
                    {"role": "user", "content": "hello"},
                    *RESPONSE["output"],
                    {"type": "function_call_output", "call_id": "call_1", "output": "x"},
                ]
            },
            RESPONSE,
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}],
                    }
                ]
            },
            {
                "messages": [
                    *TALK,
                    {"role": "assistant", "content": MESSAGE["content"]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "x"}]}
                        ],
                    },
                ]
            },
            MESSAGE,
        ),
    ]
    for path, first, second, reply in rows:
        async with stage(whole(reply)) as at:
            for body in (first, second):
                await at.client.post(path, json={"model": "m", "max_tokens": 9, **body})
        (branch,) = at.trace.graph.branches(at.trace.calls)
        assert [message["role"] for message in branch.messages] == ["user", "assistant", "tool", "assistant"], path
        assert [node.sampled for node in branch.nodes] == [False, True, False, True]
        assert branch.messages[2]["content"] == "x"
