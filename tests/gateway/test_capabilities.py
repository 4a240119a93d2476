"""What a provider would do beyond the network of a task is taken out of requests, in every dialect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from forkyard.gateway.capabilities import CODE, NOTICE
from forkyard.gateway.route import BESIDE_AT_ONCE
from forkyard.gateway.terms import StopError
from forkyard.task import Task, TaskData
from tests.gateway.parts import TALK, stage
from tests.gateway.test_clients import MESSAGE, RESPONSE, message_events, response_events
from tests.gateway.upstream import Play, Seen, chat_body, chat_chunks, events, whole

PUBLIC = TaskData(prompt="hello", network_allow=("*",))
ALLOWLIST = TaskData(prompt="hello", network_allow=("example.org",))
SILENT = TaskData(prompt="hello")
NONE = TaskData(prompt="hello", network_allow=())

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PLAYS: dict[str, tuple[Play, Play]] = {
    CHAT: (whole(chat_body()), events(*chat_chunks({"content": "hi"}))),
    RESPONSES: (whole(RESPONSE), events(*response_events())),
    MESSAGES: (whole(MESSAGE), events(*message_events())),
}
OUT, IN = "https://evil.example/?secret", "data:image/png;base64,AAAA"
GREETING = {"role": "user", "content": "see https://example.org"}
SAID = {"type": "text", "text": NOTICE}
PUT = {"type": "input_text", "text": NOTICE}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}
FLAT = {"type": "function", "name": "f", "parameters": {}}
BASH = {"type": "bash_20250124", "name": "bash"}
MINE = {"name": "f", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}

Row = tuple[str, dict[str, Any], dict[str, Any], list[str]]
ROWS: dict[str, Row] = {
    "chat search": (
        CHAT,
        {"z": 1, "messages": [GREETING], "web_search_options": {}, "tools": [FUNCTION], "tool_choice": "required"},
        {"z": 1, "messages": [GREETING], "tools": [FUNCTION], "tool_choice": "required"},
        ["$.web_search_options"],
    ),
    "chat forced": (
        CHAT,
        {
            "messages": TALK,
            "tools": [{"type": "browser_search"}, {"google_search": {}}, FUNCTION],
            "tool_choice": {"type": "browser_search"},
        },
        {"messages": TALK, "tools": [FUNCTION], "tool_choice": "auto"},
        ["$.tools[0]", "$.tools[1]"],
    ),
    "chat parts": (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": OUT},
                        {"type": "image_url", "image_url": {"url": OUT, "detail": "low"}},
                        {"type": "image_url", "image_url": {"url": IN}},
                        {"image_url": " HTTP:/x"},
                        {"type": "file", "file": {"file_data": OUT, "filename": "a:/b"}},
                        {"type": "file", "file": {"file_data": IN, "filename": "a:/b"}},
                        {"type": "input_audio", "input_audio": {"data": "//uQxAAA", "format": "mp3"}},
                    ],
                }
            ]
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": OUT},
                        SAID,
                        {"type": "image_url", "image_url": {"url": IN}},
                        SAID,
                        SAID,
                        {"type": "file", "file": {"file_data": IN, "filename": "a:/b"}},
                        {"type": "input_audio", "input_audio": {"data": "//uQxAAA", "format": "mp3"}},
                    ],
                }
            ]
        },
        ["$.messages[0].content[1]", "$.messages[0].content[3]", "$.messages[0].content[4]"],
    ),
    "responses nothing left": (
        RESPONSES,
        {
            "input": "hello",
            "tools": [
                {"type": kind}
                for kind in (
                    "web_search",
                    "web_search_preview_2025_03_11",
                    "code_interpreter",
                    "file_search",
                    "mcp",
                    "image_generation",
                    "not_known_yet",
                )
            ],
            "tool_choice": {"type": "mcp", "server_label": "x"},
            "parallel_tool_calls": True,
        },
        {"input": "hello"},
        [f"$.tools[{place}]" for place in range(7)],
    ),
    "responses clients": (
        RESPONSES,
        {
            "input": "hello",
            "tools": [
                FLAT | {"allowed_callers": ["direct", "programmatic"]},
                {"type": "programmatic_tool_calling"},
                {"type": "local_shell"},
                {"type": "shell", "environment": {"type": "local"}},
                {"type": "shell", "environment": {"type": "container_auto"}},
                {"type": "computer_use_preview", "display_width": 1},
                {"type": "custom", "name": "c"},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}, FLAT]},
        },
        {
            "input": "hello",
            "tools": [
                FLAT | {"allowed_callers": ["direct"]},
                {"type": "local_shell"},
                {"type": "shell", "environment": {"type": "local"}},
                {"type": "computer_use_preview", "display_width": 1},
                {"type": "custom", "name": "c"},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [FLAT]},
        },
        ["$.tools[1]", "$.tools[4]"],
    ),
    "responses parts": (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": OUT}]},
                {"role": "user", "content": [{"type": "input_file", "file_url": OUT}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": json.dumps({"url": OUT})},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": IN}]},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": OUT}]},
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}, FLAT]},
            ],
            "prompt": {"id": "p", "variables": {"a": OUT, "b": {"type": "input_image", "image_url": OUT}}},
        },
        {
            "input": [
                {"role": "user", "content": [PUT]},
                {"role": "user", "content": [PUT]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": json.dumps({"url": OUT})},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": IN}]},
                {"type": "function_call_output", "call_id": "1", "output": [PUT]},
                {"type": "additional_tools", "role": "developer", "tools": [FLAT]},
            ],
            "prompt": {"id": "p", "variables": {"a": OUT, "b": PUT}},
        },
        [
            "$.input[0].content[0]",
            "$.input[1].content[0]",
            "$.input[4].output[0]",
            "$.input[5].tools[0]",
            "$.prompt.variables",
        ],
    ),
    "messages forced": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": TALK,
            "mcp_servers": [{"type": "url", "url": OUT, "name": "x"}],
            "container": {"skills": []},
            "tools": [
                SEARCH,
                {"type": "web_fetch_20250910", "name": "web_fetch"},
                {"type": "code_execution_20250825", "name": "code_execution"},
                {"type": "mcp_toolset", "mcp_server_name": "x"},
                BASH,
                {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
                {"type": "computer_20250124", "name": "computer"},
                MINE | {"allowed_callers": ["code_execution_20250825"]},
            ],
            "tool_choice": {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True},
        },
        {
            "max_tokens": 9,
            "messages": TALK,
            "tools": [
                BASH,
                {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
                {"type": "computer_20250124", "name": "computer"},
                MINE,
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
        ["$.mcp_servers", "$.container", "$.tools[0]", "$.tools[1]", "$.tools[2]", "$.tools[3]"],
    ),
    "messages parts": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": OUT}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"url": OUT}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [
                                {"type": "text", "text": "t"},
                                {
                                    "type": "document",
                                    "source": {"type": "url", "url": OUT},
                                    "cache_control": {"type": "ephemeral"},
                                },
                            ],
                        },
                        {"type": "document", "source": {"type": "text", "data": OUT, "media_type": "text/plain"}},
                    ],
                },
                {
                    "role": "system",
                    "content": [
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}},
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": MINE}},
                    ],
                },
            ],
        },
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [SAID]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"url": OUT}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [{"type": "text", "text": "t"}, SAID | {"cache_control": {"type": "ephemeral"}}],
                        },
                        {"type": "document", "source": {"type": "text", "data": OUT, "media_type": "text/plain"}},
                    ],
                },
                {
                    "role": "system",
                    "content": [
                        SAID,
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": MINE}},
                    ],
                },
            ],
        },
        ["$.messages[0].content[0]", "$.messages[2].content[0].content[1]", "$.messages[3].content[0]"],
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ROWS)
async def test_what_would_reach_beyond_the_network_is_taken_out(name: str, streamed: bool) -> None:
    path, asked, left, paths = ROWS[name]
    more = {"model": "m", "stream": True, "stream_options": {"include_usage": True}} if streamed else {"model": "m"}
    play = PLAYS[path][streamed]
    async with stage(play, task=Task(SILENT)) as at:
        reply = await at.client.post(path, json=asked | more)
    assert at.provider.seen[0].body == json.dumps(left | more, separators=(",", ":")).encode()
    assert reply.content == b"".join(play.pieces)
    assert at.call.policy == [{"code": CODE, "paths": paths}]
    assert at.call.error is None


@pytest.mark.parametrize("task", [Task(PUBLIC), None])
@pytest.mark.parametrize("name", ROWS)
async def test_with_a_public_network_or_without_a_task_nothing_changes(name: str, task: Task | None) -> None:
    path, asked, _, _ = ROWS[name]
    content = json.dumps(asked | {"model": "m"}, indent=1).encode()
    async with stage(PLAYS[path][0], task=task) as at:
        await at.client.post(path, content=content)
    assert at.provider.seen[0].body == content
    assert at.call.policy == []


@pytest.mark.parametrize("data", [NONE, ALLOWLIST])
async def test_without_a_network_and_with_an_allowlist_it_is_the_same(data: TaskData) -> None:
    async with stage(whole(chat_body()), task=Task(data)) as at:
        await at.chat(web_search_options={})
    assert "web_search_options" not in at.provider.seen[0].json


async def test_a_verifiers_judge_is_no_agent() -> None:
    async with stage(whole(chat_body()), task=Task(NONE), purpose="judge") as at:
        await at.chat(web_search_options={})
    assert "web_search_options" in at.provider.seen[0].json


async def test_a_member_written_twice_does_not_smuggle_the_first() -> None:
    content = b'{"model":"m","tools":[{"type":"web_search"}],"input":"hello","tools":[{"type":"function","name":"f"}]}'
    async with stage(whole(RESPONSE), task=Task(NONE)) as at:
        await at.client.post(RESPONSES, content=content)
    assert b"web_search" not in at.provider.seen[0].body


async def test_the_addresses_of_the_tasks_own_prompt_stay() -> None:
    content = [{"type": "image_url", "image_url": {"url": "https://example.org/task.png"}}]
    data = TaskData.model_validate({"prompt": [{"role": "user", "content": content}]})
    other = [{"type": "image_url", "image_url": {"url": "https://example.org/task.png?secret"}}]
    async with stage(whole(chat_body()), task=Task(data)) as at:
        await at.chat(messages=[{"role": "user", "content": content}, {"role": "user", "content": other}])
    assert [turn["content"] for turn in at.provider.seen[0].json["messages"]] == [content, [SAID]]


async def test_counting_tokens_fetches_nothing_either() -> None:
    _, asked, left, _ = ROWS["messages parts"]
    async with stage(whole({"input_tokens": 1}), task=Task(NONE)) as at:
        await at.client.post("/v1/messages/count_tokens", json=asked | {"model": "m"})
    assert at.provider.seen[0].json == left | {"model": "m"}
    assert at.trace.calls == []


async def test_after_a_stop_the_side_door_refuses_as_calls_do() -> None:
    async with stage(whole({"data": []})) as at:
        at.route.stop(StopError("max_turns"))
        replies = [
            await at.client.get("/v1/models"),
            await at.client.post("/v1/messages/count_tokens", json={"model": "m", "messages": TALK}),
            await at.chat(),
        ]
    assert [reply.status_code for reply in replies] == [400, 400, 400]
    assert all("rollout stopped: max_turns" in reply.text for reply in replies)
    assert at.provider.seen == []


async def test_after_the_seal_the_side_door_refuses() -> None:
    async with stage(whole({"data": []})) as at:
        await at.route.close()
        assert (await at.client.get("/v1/models")).status_code == 409
    assert at.provider.seen == []


async def test_few_requests_beside_calls_are_under_way_at_once() -> None:
    def answer(seen: Seen) -> Play:
        return Play(pieces=[b"{}"], hold_at=-1)

    async with stage(answer=answer) as at, asyncio.TaskGroup() as group:
        asked = [group.create_task(at.client.get("/v1/models")) for _ in range(3 * BESIDE_AT_ONCE)]
        await at.provider.busy(BESIDE_AT_ONCE)
        at.provider.gate.set()
        replies = await asyncio.gather(*asked)
    assert [reply.status_code for reply in replies] == [200] * len(asked)
    assert at.provider.most == BESIDE_AT_ONCE


async def test_who_waits_beside_calls_when_the_agent_is_stopped_is_refused() -> None:
    async with stage(Play(pieces=[b"{}"], hold_at=-1)) as at, asyncio.TaskGroup() as group:
        asked = [group.create_task(at.client.get("/v1/models")) for _ in range(BESIDE_AT_ONCE + 1)]
        await at.provider.busy(BESIDE_AT_ONCE)
        at.route.stop(StopError("max_turns"))
        at.provider.gate.set()
        replies = await asyncio.gather(*asked)
    assert sorted(reply.status_code for reply in replies) == [200] * BESIDE_AT_ONCE + [400]
