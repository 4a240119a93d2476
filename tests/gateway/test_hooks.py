"""A task's stops and interceptors, at the gateway, in every dialect and in streams."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from forkyard.errors import StoppedError, TaskError
from forkyard.gateway import Bounds
from forkyard.task import Request, Response, Task, TaskData, intercept, stop
from forkyard.trace import AssistantMessage, Trace, UserMessage
from tests.gateway.parts import TALK, stage
from tests.gateway.test_clients import MESSAGE, RESPONSE, Tap, client_of, message_events, response_events
from tests.gateway.upstream import KEY, Play, chat_body, chat_chunks, events, whole

DATA = TaskData(prompt="hello")


class Quiet(Task):
    """Changes what is said both ways."""

    @intercept
    def ask(self, request: Request) -> Request:
        last = request.messages[-1]
        if last.role == "user":
            request.messages[-1] = UserMessage("softly: " + last.text)
        elif last.role == "tool":
            last["content"] = "hidden"
        return request

    @intercept
    def answer(self, response: Response) -> Response | None:
        if response.message.tool_calls:
            return response.model_copy(update={"message": AssistantMessage("no tools here")})
        return None


CALLS = [{"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
PIECE = {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "bash", "arguments": "{}"}}]}
ROWS: list[tuple[str, str, Play, Play]] = [
    ("chat", "openai", whole(chat_body(None, tool_calls=CALLS)), events(*chat_chunks(PIECE, reason="tool_calls"))),
    ("responses", "openai", whole(RESPONSE), events(*response_events())),
    ("messages", "anthropic", whole(MESSAGE), events(*message_events())),
]


async def ask(kind: str, client: Any, streamed: bool) -> str:
    """What the client understands the reply to be."""
    if kind == "chat" and streamed:
        async with client.chat.completions.stream(model="m", messages=TALK) as stream:
            return str((await stream.get_final_completion()).choices[0].message.content)
    if kind == "chat":
        return str((await client.chat.completions.create(model="m", messages=TALK)).choices[0].message.content)
    if kind == "responses" and streamed:
        async with client.responses.stream(model="m", input="hello") as stream:
            return str((await stream.get_final_response()).output_text)
    if kind == "responses":
        return str((await client.responses.create(model="m", input="hello")).output_text)
    asked: Any = {"model": "m", "max_tokens": 9, "messages": TALK}
    if streamed:
        async with client.messages.stream(**asked) as stream:
            return str((await stream.get_final_message()).content[0].text)
    return str((await client.messages.create(**asked)).content[0].text)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("row", range(len(ROWS)))
async def test_requests_and_replies_are_changed_in_every_dialect(row: int, streamed: bool) -> None:
    kind, maker, play, stream = ROWS[row]
    played = stream if streamed else play
    async with stage(played, task=Quiet(DATA)) as at, client_of(maker, at.url, Tap()) as client:
        assert await ask(kind, client, streamed) == "no tools here"
    sent = at.provider.seen[0].json
    turn = sent["input"] if kind == "responses" else sent["messages"]
    assert "softly: hello" in str(turn)
    assert [node.message["content"] for node in at.trace.graph.nodes] == ["softly: hello", "no tools here"]
    assert (at.call.usage.input, at.call.error, at.trace.steps) == (100, None, 1)
    assert [at.trace.info[name] for name in ("request_rewrites", "response_rewrites")] == [
        [{"handler": "ask"}],
        [{"handler": "answer"}],
    ]


RESULTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            *TALK,
            {"role": "assistant", "tool_calls": CALLS},
            {"role": "tool", "tool_call_id": "call_1", "content": "secret"},
        ]
    },
    "/v1/responses": {
        "instructions": "be",
        "input": [
            {"role": "user", "content": "hello"},
            {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "secret"},
        ],
    },
    "/v1/messages": {
        "system": "be",
        "max_tokens": 5,
        "messages": [
            *TALK,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "secret"}]},
        ],
    },
}


@pytest.mark.parametrize("path", RESULTS)
async def test_a_tool_result_is_rewritten_in_its_place_and_stays_so(path: str) -> None:
    async with stage(whole({}, 500), task=Quiet(DATA)) as at:
        for _ in range(2):
            await at.client.post(path, json={"model": "m", **RESULTS[path]})
    for seen in at.provider.seen:
        assert b"secret" not in seen.body and b"hidden" in seen.body and b"call_1" in seen.body
        assert "softly" not in seen.body.decode()  # the user's message was not the new one
    assert [set(seen.json) for seen in at.provider.seen] == [{"model", *RESULTS[path]}] * 2


async def test_untouched_streams_keep_their_bytes() -> None:
    pieces = chat_chunks({"content": "plain"})
    async with stage(events(*pieces), task=Quiet(DATA)) as at:
        reply = await at.chat(stream=True, stream_options={"include_usage": True})
    assert reply.content == b"".join(pieces)


async def test_a_client_whose_stream_is_held_back_is_not_left_in_the_dark() -> None:
    pieces = chat_chunks({"content": "plain"})
    play = events(*pieces, hold_at=2)
    async with stage(play, play, task=Quiet(DATA), bounds=Bounds(silence=0.01)) as at:
        body = {"model": "m", "messages": TALK, "stream": True, "stream_options": {"include_usage": True}}
        async with at.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200 and at.trace.calls == []
            at.provider.gate.set()
            assert b"".join([piece async for piece in reply.aiter_raw()]) == b"".join(pieces)
        at.provider.gate.clear()
        at.provider.held.clear()
        async with at.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            await at.provider.held.wait()
        await at.ended.acquire()
        await at.ended.acquire()
        await at.provider.cut.wait()
    assert [call.error is None for call in at.trace.calls] == [True, False]


class Stops(Task):
    @stop
    def often(self, trace: Trace) -> bool:
        return trace.num_turns >= 2

    @stop
    def asked_for(self, request: Request) -> bool:
        return "enough" in request.messages[-1].text

    @stop
    def said(self, response: Response) -> bool:
        return response.message.text == "over"


async def test_stops_look_at_the_trace_the_request_and_the_reply() -> None:
    async with stage(whole(chat_body()), task=Stops(DATA)) as at:
        for status in (200, 200, 400):
            assert (await at.chat()).status_code == status
    assert (at.route.refused, at.trace.stop_condition, len(at.trace.calls)) == ("often", "often", 2)

    async with stage(whole(chat_body()), task=Stops(DATA)) as at:
        reply = await at.chat(messages=[{"role": "user", "content": "enough"}])
    assert reply.json()["error"]["message"] == "rollout stopped: asked_for" and at.provider.seen == []

    async with stage(whole(chat_body("over")), task=Stops(DATA)) as at:
        assert (await at.chat()).status_code == 200  # the reply is the agent's; there is no other after it
        assert (await at.chat()).status_code == 400
        with pytest.raises(StoppedError):
            await at.route.model().complete(TALK)
    assert at.route.refused == at.trace.stop_condition == "said"
    assert at.trace.graph.nodes[-1].message["content"] == "over"


class Broken(Task):
    @stop
    def fails(self, trace: Trace) -> bool:
        raise KeyError("boom")


class BrokenReply(Task):
    @intercept
    def fails(self, response: Response) -> Response:
        raise KeyError("boom")


@pytest.mark.parametrize(("task", "calls"), [(Broken(DATA), 0), (BrokenReply(DATA), 1)])
async def test_a_hook_that_fails_is_the_tasks_fault(task: Task, calls: int) -> None:
    async with stage(whole(chat_body()), task=task) as at:
        reply = await at.chat()
        with pytest.raises(TaskError, match="model boundary hook failed: KeyError"):
            await at.route.model().complete(TALK)
    assert reply.status_code == 400 and "model boundary hook failed" in reply.json()["error"]["message"]
    assert isinstance(at.route.failure, TaskError)
    assert len(at.trace.calls) == calls * 2 and KEY not in str(at.trace.calls)


async def test_a_judge_is_not_watched() -> None:
    async with stage(whole(chat_body("over")), task=Stops(DATA), purpose="judge") as at:
        for _ in range(3):
            assert (await at.chat()).status_code == 200
    assert at.route.refused is None


async def test_clients_know_the_refusal_of_a_stop() -> None:
    class Never(Task):
        @stop
        def never(self, trace: Trace) -> bool:
            return True

    async with stage(task=Never(DATA)) as at:
        async with client_of("anthropic", at.url, Tap()) as client:
            with pytest.raises(anthropic.BadRequestError, match="rollout stopped: never"):
                await ask("messages", client, streamed=True)
        async with client_of("openai", at.url, Tap()) as client:
            with pytest.raises(openai.BadRequestError, match="rollout stopped: never"):
                await ask("responses", client, streamed=True)
