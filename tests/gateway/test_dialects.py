"""What each dialect reads out of requests, replies and streams; whatever comes, reading ends in a value or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.gateway.decoding import Events
from forkyard.gateway.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect
from forkyard.gateway.observer import Guard, LeakError, StreamObserver, read_whole
from forkyard.model import Sampling
from forkyard.trace import Graph, Usage
from tests.gateway.test_clients import MESSAGE, RESPONSE, message_events, response_events
from tests.gateway.upstream import chat_body, chat_chunks, sse

NOBODY = Guard(())


def streamed(dialect: Dialect, *pieces: bytes, hide_usage: bool = False) -> StreamObserver:
    observer = StreamObserver(dialect, "", NOBODY, hide_usage)
    for piece in pieces:
        observer.feed(piece)
    observer.end()
    return observer


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("dialect", "body", "pieces"),
    [(RESPONSES, RESPONSE, response_events()), (MESSAGES, MESSAGE, message_events())],
)
def test_a_stream_says_the_same_as_a_whole_reply(dialect: Dialect, body: Any, pieces: list[bytes], cut: int) -> None:
    data = b"".join(pieces)
    told = streamed(dialect, *(data[at : at + cut] for at in range(0, len(data), cut)))
    assert told.answered() == read_whole(dialect, json.dumps(body).encode())
    assert told.ended


def test_token_ids_and_logprobs_of_a_whole_reply_are_the_providers() -> None:
    body = chat_body() | {"prompt_token_ids": [1, 2, 3]}
    logprobs = {"content": [{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -1}]}
    body["choices"][0] |= {"token_ids": [7, 8], "logprobs": logprobs}
    answered, problem = read_whole(CHAT, json.dumps(body).encode())
    assert problem is None
    assert (answered.prompt_token_ids, answered.token_ids, answered.logprobs) == ([1, 2, 3], [7, 8], [-0.5, -1])


def test_token_ids_and_logprobs_of_a_stream_are_put_together() -> None:
    def chunk(ids: list[int], text: str, **more: Any) -> bytes:
        logprobs = {"content": [{"token": text, "logprob": -0.25}] * len(ids)}
        choice = {"index": 0, "delta": {"content": text}, "token_ids": ids, "logprobs": logprobs, "finish_reason": None}
        return sse({"choices": [choice], **more})

    end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    told = streamed(CHAT, chunk([7], "a", prompt_token_ids=[1, 2]), chunk([8, 9], "b"), end, sse("[DONE]"))
    answered, problem = told.answered()
    assert (problem, answered.prompt_token_ids, answered.token_ids) == (None, [1, 2], [7, 8, 9])
    assert answered.logprobs == [-0.25] * 3


def test_of_several_choices_the_first_is_read() -> None:
    pieces = [
        sse({"choices": [{"index": at, "delta": {"content": text}, "finish_reason": "stop"}]})
        for at, text in ((1, "other"), (0, "mine"))
    ]
    answered, _ = streamed(CHAT, *pieces).answered()
    assert answered.message is not None and answered.message["content"] == "mine"


def test_input_tokens_of_messages_are_all_of_the_prompt() -> None:
    answered = MESSAGES.read_reply(MESSAGE)
    assert answered.usage == Usage(input=100, output=10, cached=40)
    assert answered.written == 10


def test_everything_a_conversation_can_hold_is_read_into_one_shape() -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    blocks = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    ]
    asked = MESSAGES.read_request(
        {
            "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": blocks},
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": "one"},
                        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
                        {"type": "text", "text": "go on"},
                    ],
                },
            ],
            "tools": [{"name": "t", "input_schema": {"type": "object"}}, {"type": "web_search_1", "name": "w"}],
        }
    )
    assert asked.messages == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "go on"},
    ]
    assert [tool.get("type") for tool in asked.tools] == ["function", "web_search_1"]

    told = RESPONSES.read_request(
        {
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "be"}]},
                {"role": "user", "content": [{"type": "input_image", "image_url": image["image_url"]["url"]}]},
                {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
                {"type": "local_shell_call", "call_id": "b", "action": {"command": ["ls"]}},
                {"type": "item_reference", "id": "x"},
            ]
        }
    )
    roles = [message["role"] for message in told.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert told.messages[1]["content"] == [image]
    assert told.messages[2]["tool_calls"][0]["function"] == {"name": "patch", "arguments": "*** Begin"}
    assert told.messages[4]["tool_calls"][0]["function"]["name"] == "local_shell_call"


@pytest.mark.parametrize(
    ("dialect", "body", "changed"),
    [
        (CHAT, {}, {"temperature": 0.5, "max_tokens": 9, "seed": 1, "reasoning_effort": "low"}),
        (CHAT, {"max_completion_tokens": 5}, {"max_completion_tokens": 9}),
        (RESPONSES, {"reasoning": {"x": 1}}, {"max_output_tokens": 9, "reasoning": {"x": 1, "effort": "low"}}),
        (MESSAGES, {}, {"max_tokens": 9, "output_config": {"effort": "low"}}),
    ],
)
def test_a_runs_sampling_is_said_in_the_words_of_the_dialect(dialect: Dialect, body: Any, changed: Any) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=9, seed=1, extra={"reasoning_effort": "low"})
    got = dialect.sampled(body, sampling)
    assert changed.items() <= got.items()
    assert ("max_tokens" in got) == ("max_tokens" in changed)


def test_a_key_cut_in_pieces_is_found() -> None:
    guard = Guard(["secret-key"])
    guard.check(b"abc sec")
    guard.check(b"ret-")
    with pytest.raises(LeakError):
        guard.check(b"key")


def test_events_are_cut_where_they_end() -> None:
    cutter = Events()
    data = b"event: a\r\ndata: 1\r\n\r\n: note\n\ndata: 2\ndata: 3\n\ndata: left"
    pieces = [piece for at in range(len(data)) for piece in cutter.feed(data[at : at + 1])]
    assert [told for _, told in pieces] == [b"1", b"", b"2\n3"]
    assert b"".join(raw for raw, _ in pieces) + cutter.end() == data


NAMES = (
    "type role content text messages input output tools function name arguments id call_id tool_calls usage choices "
    "delta index item response message content_block tool_use_id source url system instructions summary thinking "
    "finish_reason stop_reason error token_ids logprobs prompt_token_ids input_tokens part max_tokens n"
).split()
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES) | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
KINDS = st.sampled_from(
    "message tool_result tool_use text image reasoning function_call function_call_output message_start message_delta "
    "content_block_start content_block_delta response.completed response.output_item.done error x".split()
)
OBJECT: Any = st.dictionaries(st.just("type"), KINDS).flatmap(
    lambda head: st.dictionaries(
        st.sampled_from("messages input output content choices usage item response message delta index tools".split()),
        JSON,
    ).map(lambda rest: head | rest)
)


@settings(max_examples=60, deadline=None)
@given(body=OBJECT)
def test_whatever_a_request_holds_it_is_read_and_can_be_recorded(body: dict[str, Any]) -> None:
    for dialect in DIALECTS:
        asked = dialect.read_request(body)
        if asked.messages:
            Graph().commit(asked.messages, {"role": "assistant", "content": "x"}, tools=asked.tools)


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(OBJECT, max_size=4))
def test_whatever_a_reply_holds_it_is_read_or_an_error(bodies: list[dict[str, Any]]) -> None:
    for dialect in DIALECTS:
        pieces = [sse(json.dumps(body)) for body in bodies]
        for answered, problem in (
            streamed(dialect, *pieces).answered(),
            read_whole(dialect, json.dumps(bodies[0] if bodies else {}).encode()),
        ):
            assert problem is None or isinstance(problem, str)
            if answered.message is not None:
                Graph().commit([{"role": "user", "content": "x"}], answered.message)


def test_a_chat_stream_hides_only_the_usage() -> None:
    pieces = chat_chunks({"content": 'a quote of "usage": null, and {"usage":null}'})
    observer = StreamObserver(CHAT, "", NOBODY, hide_usage=True)
    shown = b"".join(observer.feed(piece) for piece in pieces) + observer.end()
    assert shown == b"".join(piece for piece in pieces if b'"usage": {' not in piece)
