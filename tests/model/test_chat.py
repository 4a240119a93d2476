from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from forkyard.errors import (
    AuthenticationError,
    ConfigError,
    ModelError,
    ProxyRefusedError,
)
from forkyard.gateway import Gateway
from forkyard.gateway.transport import RouteTransport
from forkyard.gateway.upstreams import Upstream, Upstreams
from forkyard.model import ChatModel, Place, Sampling
from forkyard.trace import Trace, Usage
from tests.model.provider import KEY, ROWS, error, message, model_playing, playing, reply, row

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


@asynccontextmanager
async def proxied(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that the environment names, and that answers so; and what it was asked."""
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listener:
        at = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        for name in ("https_proxy", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{KEY}@{at}")
        yield at, asked


@pytest.mark.parametrize("by_gateway", [False, True], ids=["straight", "gateway"])
async def test_what_a_proxy_refuses_is_not_asked_again_and_its_variable_is_named(
    by_gateway: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://{'by-gateway' if by_gateway else 'straight'}.example/v1"
    async with AsyncExitStack() as stack:
        at, asked = await stack.enter_async_context(proxied(b"HTTP/1.1 403 Forbidden\r\n\r\n", monkeypatch))
        transport = None
        if by_gateway:
            gateway = Gateway(Upstreams((Upstream(Place(url)),)))
            stack.push_async_callback(gateway.close)
            route = gateway.open(Trace(), "m")
            stack.push_async_callback(route.close)
            transport = RouteTransport(route)
        model = ChatModel("m", url, transport=transport)
        stack.push_async_callback(model.close)
        with pytest.raises(ProxyRefusedError) as refused:
            await model.complete(HELLO)
    assert len(asked) == 1 and refused.value.fatal and refused.value.status_code == 403
    assert f"the proxy {at} that HTTPS_PROXY names answered 403" in str(refused.value)
    assert "NO_PROXY" in str(refused.value) and KEY not in str(refused.value)


async def test_a_proxy_that_reaches_nothing_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", monkeypatch) as (at, asked):
        model = ChatModel("m", "https://some.example/v1", retry_seconds=5, sleep=lambda _: asyncio.sleep(0))
        with pytest.raises(ModelError, match=f"the proxy {at} that HTTPS_PROXY names answered 502"):
            await model.complete(HELLO)
        await model.close()
    assert len(asked) > 1


async def test_a_reply_brings_message_usage_and_finish_reason() -> None:
    details = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    answer = reply("hi")
    answer["body"]["usage"] = details
    async with model_playing(answer) as (model, provider):
        got = await model.complete(HELLO, [TOOL], Sampling(temperature=0.5, max_tokens=9, extra={"top_k": 3}))
    assert got.message == {"role": "assistant", "content": "hi"}
    assert got.usage == Usage(input=7, output=3, cached=2, reasoning=1)
    assert (got.finish_reason, got.retries, got.waited_ms) == ("stop", 0, 0)
    assert provider.asked[0].body == {
        "model": "fake",
        "messages": HELLO,
        "tools": [TOOL],
        "temperature": 0.5,
        "max_tokens": 9,
        "top_k": 3,
    }
    assert provider.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_no_tools_and_plain_sampling_leave_their_fields_out() -> None:
    async with model_playing(reply("hi")) as (model, provider):
        await model.complete(HELLO)
    assert set(provider.asked[0].body) == {"model", "messages"}


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": None}, {"prompt_tokens": "many"}, {"prompt_tokens": -1}])
async def test_missing_or_odd_usage_counts_nothing(usage: Any) -> None:
    answer = reply("hi")
    answer["body"]["usage"] = usage
    async with model_playing(answer) as (model, _):
        assert (await model.complete(HELLO)).usage == Usage()


async def test_a_message_is_kept_as_received_without_nulls() -> None:
    received = message(None, ["ls"], refusal=None, annotations=[], reasoning_details=[{"text": "t", "index": None}])
    async with model_playing(reply(received, "tool_calls")) as (model, _):
        got = (await model.complete(HELLO)).message
    assert set(got) == {"role", "tool_calls", "reasoning_details"}
    assert got["reasoning_details"] == [{"text": "t", "index": None}]
    assert got["tool_calls"] == received["tool_calls"]


async def test_a_tool_call_without_id_is_given_one() -> None:
    call = {"id": None, "function": {"name": "bash", "arguments": "{}"}}
    async with model_playing(reply(message(tool_calls=[call, call]))) as (model, _):
        first, second = (await model.complete(HELLO)).message["tool_calls"]
    assert first["id"] and second["id"] and first["id"] != second["id"]


async def test_lone_surrogates_and_nan_in_a_conversation_are_sent_as_strict_json() -> None:
    async with model_playing(reply("hi")) as (model, provider):
        await model.complete([{"role": "user", "content": "a\ud800b"}], sampling=Sampling(extra={"x": float("nan")}))
    assert provider.asked[0].body["messages"][0]["content"] == "a\ufffdb"
    assert provider.asked[0].body["x"] is None


@pytest.mark.parametrize(
    "bad",
    [
        {"body": {"choices": []}},
        {"body": {"choices": None}},
        {"body": {"choices": [{"message": None}]}},
        {"body": {"choices": [{"message": "text"}]}},
        {"body": {"choices": [{"message": {"tool_calls": "none"}}]}},
        {"body": []},
        {"body": ""},
        {"body": "<html>busy</html>"},
        {"body": "[" * 100_000},
        {"body": {"error": {"message": "upstream went away"}}},
        {"body": {"error": {"message": "upstream went away", "code": 502}}},
        {"body": {"choices": [{"error": "gone", "finish_reason": "error", "message": {"content": ""}}]}},
        {"close": True},
        {"stream_raw": 'data: {"choices": [{"delta": {"content": "half'},
        {"stream": [{"choices": [{"delta": {"content": "half"}}]}]},
        {"stream": ["not a chunk"]},
        {"stream": [{"choices": "none"}]},
        {"headers": {"Content-Encoding": "gzip"}, "body": "not gzip"},
        {"status": 408, "body": ""},
        {"status": 409, "body": ""},
        {"status": 429, "body": "slow down"},
        {"status": 500, "body": {"detail": "oops"}},
        {"status": 529, "body": {"error": "overloaded"}},
    ],
)
async def test_a_passing_fault_is_retried(bad: dict[str, Any]) -> None:
    async with model_playing(bad, bad, reply("hi")) as (model, provider):
        got = await model.complete(HELLO)
    assert got.message["content"] == "hi"
    assert (got.retries, len(provider.asked), len(provider.pauses)) == (2, 3, 2)
    assert got.waited_ms == sum(provider.pauses) * 1000


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"message": None}]}, "no JSON", {"error": "gone"}])
async def test_a_reply_malformed_for_ever_is_a_provider_error_after_a_few_requests(body: Any) -> None:
    async with model_playing({"body": body, "repeat": True}) as (model, provider):
        with pytest.raises(ModelError, match="6 tries") as caught:
            await model.complete(HELLO)
    assert (type(caught.value), caught.value.status_code) == (ModelError, 502)
    assert len(provider.asked) == 6


async def test_a_streamed_reply_is_joined() -> None:
    def call(**piece: Any) -> dict[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [piece]}}]}

    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": "", "reasoning_content": "thi"}}]},
        {"choices": [{"delta": {"reasoning_content": "nk\u2028"}}]},
        call(index=0, id="a", function={"name": "bash", "arguments": '{"comm'}),
        call(index=0, function={"arguments": 'and": "ls"}'}),
        call(index=1, id="b", function={"name": "bash", "arguments": "{}"}),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}},
    ]
    async with model_playing({"stream": chunks}) as (model, _):
        got = await model.complete(HELLO)
    assert got.message["reasoning_content"] == "think\u2028"
    assert [call["function"]["arguments"] for call in got.message["tool_calls"]] == ['{"command": "ls"}', "{}"]
    assert (got.finish_reason, got.usage) == ("tool_calls", Usage(input=4, output=2))


async def test_retry_after_in_seconds_is_honoured() -> None:
    written = row("429 with Retry-After 2, five times, then well")
    async with model_playing(*written["replies"]) as (model, provider):
        got = await model.complete(HELLO)
    assert got.retries == 5
    assert sum(provider.pauses) >= written["expect"]["min_wall_s"]
    assert all(2 <= pause <= 3 for pause in provider.pauses)


async def test_retry_after_as_a_date_is_taken_by_the_providers_clock() -> None:
    now = datetime(2020, 1, 1, tzinfo=UTC)
    headers = {"Date": format_datetime(now, usegmt=True), "Retry-After": format_datetime(now + timedelta(seconds=60))}
    async with model_playing({"status": 429, "headers": headers, "body": ""}, reply("hi")) as (model, provider):
        await model.complete(HELLO)
    assert 60 <= provider.pauses[0] <= 61


@pytest.mark.parametrize("asked", ["0", "-5", "nan", "inf", "soon", "Wed, 01 Jan 2020 00:00:00 GMT", ""])
async def test_a_senseless_retry_after_falls_back_to_the_usual_pause(asked: str) -> None:
    answer = {"status": 503, "headers": {"Retry-After": asked}, "body": ""}
    async with model_playing(answer, reply("hi")) as (model, provider):
        await model.complete(HELLO)
    assert 0.25 <= provider.pauses[0] <= 0.75


async def test_pauses_grow_and_end_with_the_time_for_retries() -> None:
    async with model_playing(error(500, "oops"), retry_seconds=100) as (model, provider):
        with pytest.raises(ModelError, match=r"answered 500: oops \(\d+ tries in \d+ s") as caught:
            await model.complete(HELLO)
    assert caught.value.status_code == 500
    assert sum(provider.pauses) <= 100
    assert provider.pauses[0] <= 0.75 and max(provider.pauses) > 8


async def test_a_pause_longer_than_the_time_for_retries_is_not_begun() -> None:
    answer = {"status": 429, "headers": {"Retry-After": "3600"}, "body": {"error": {"message": "later"}}}
    async with model_playing(answer) as (model, provider):
        with pytest.raises(ModelError, match="later .*one try; the next would be 3[67]"):
            await model.complete(HELLO)
    assert provider.pauses == []


async def test_a_spent_account_is_not_asked_again() -> None:
    async with model_playing(error(429, "You exceeded your current quota", code="insufficient_quota")) as (model, _):
        with pytest.raises(ModelError, match="no credit"):
            await model.complete(HELLO)


async def test_a_hanging_provider_is_given_up_at_the_timeout() -> None:
    async with model_playing({"hang": True}, reply("hi") | {"repeat": True}, timeout=0.2) as (model, provider):
        assert (await model.complete(HELLO)).message["content"] == "hi"
    assert provider.pauses


async def test_a_provider_that_hangs_for_ever_is_a_timeout_of_the_provider() -> None:
    async with model_playing({"hang": True, "repeat": True}, timeout=0.05, retry_seconds=1) as (model, _):
        with pytest.raises(ModelError, match="did not answer within") as caught:
            await model.complete(HELLO)
    assert caught.value.status_code == 504


async def test_the_callers_deadline_passes_through() -> None:
    async with model_playing({"hang": True}) as (model, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await model.complete(HELLO)


async def test_an_address_nobody_listens_at_is_given_up_soon_and_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen; nobody else can have it meanwhile
        port = free.getsockname()[1]
        async with playing() as provider:
            provider.url = f"http://127.0.0.1:{port}/v1"
            model = provider.model()
            with pytest.raises(ModelError, match=f"127.0.0.1:{port}.* cannot be reached.*OPENAI_BASE_URL") as caught:
                await model.complete(HELLO)
            await model.close()
    assert caught.value.status_code == 503
    assert len(provider.pauses) == 3


async def test_a_provider_that_restarts_in_the_middle_of_a_run_is_waited_for() -> None:
    async with model_playing(reply("hi") | {"goodbye": True}) as (model, provider):
        await model.complete(HELLO)
        with pytest.raises(ModelError, match="cannot be reached"):
            await model.complete(HELLO)
    assert sum(provider.pauses) > 500


@pytest.mark.parametrize("written", ROWS, ids=lambda written: written["name"])
async def test_the_key_is_in_no_error(written: dict[str, Any]) -> None:
    async with playing() as provider:
        provider.replies = [error(401, f"bad key {KEY}"), *written["replies"]]
        model = provider.model()
        with pytest.raises(AuthenticationError) as caught:
            await model.complete(HELLO)
        await model.close()
    assert KEY not in "".join(traceback.format_exception(caught.value)) + repr(model) + repr(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 400, "body": {"error": {"message": f"header was Bearer {KEY}"}}},
        {"status": 500, "body": "x" * 490 + KEY},
        {"body": f"<html>{KEY}</html>"},
        {"body": {"error": {"message": KEY, KEY: [KEY]}}},
        {"body": {"choices": [{"message": None, "finish_reason": KEY}]}},
        {"stream_raw": KEY},
    ],
)
async def test_an_error_that_quotes_the_provider_quotes_no_key(answer: dict[str, Any]) -> None:
    async with model_playing(answer | {"repeat": True}, retry_seconds=5) as (model, _):
        with pytest.raises(ModelError) as caught:
            await model.complete(HELLO)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert KEY[:10] not in text


async def test_many_calls_at_once_share_one_model() -> None:
    async with model_playing(reply("hi") | {"repeat": True}) as (model, provider):
        got = await asyncio.gather(*(model.complete(HELLO) for _ in range(200)))
    assert [answer.message["content"] for answer in got] == ["hi"] * 200
    assert len(provider.asked) == 200


@pytest.mark.parametrize(
    ("url", "key", "complaint"),
    [
        ("ftp://x/v1", None, "not an http"),
        ("127.0.0.1:8000/v1", None, "not an http|not a URL"),
        ("http://", None, "not an http"),
        ("http://x:port/v1", None, "not a URL"),
        (f"http://user:{KEY}@x/v1", None, "no user, password or query"),
        (f"http://x/v1?key={KEY}", None, "no user, password or query"),
        ("http://x/v1/chat/completions", None, "before /chat/completions"),
        ("http://x/v1", f"{KEY}\n", "cannot be sent in a header"),
        ("http://x/v1", f"{KEY}é", "cannot be sent in a header"),
    ],
)
def test_a_bad_endpoint_is_refused_before_anything_is_sent(url: str, key: str | None, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        ChatModel("m", url, key)
    assert KEY not in str(caught.value)


async def test_without_a_key_none_is_sent() -> None:
    async with playing(reply("hi")) as provider:
        model = ChatModel("m", provider.url)
        assert (await model.complete(HELLO)).message["content"] == "hi"
        await model.close()
    assert "authorization" not in provider.asked[0].headers


async def test_errors_name_the_settings_that_gave_the_url_and_the_key() -> None:
    async with playing(error(401, "bad key")) as provider:
        model = ChatModel("m", Place(provider.url, "base_url of up.toml", "MY_KEY"), KEY)
        with pytest.raises(AuthenticationError, match="check MY_KEY"):
            await model.complete(HELLO)
        await model.close()
    with pytest.raises(ConfigError, match="check base_url of up.toml"):
        ChatModel("m", Place("ftp://x", "base_url of up.toml"))


async def test_what_else_a_stream_holds_is_kept() -> None:
    details = [{"type": "reasoning.text", "text": "t"}]
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "a", "reasoning_details": details},
        {"content": "b", "reasoning_details": details, "refusal": None},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    async with model_playing({"stream": [*chunks, end]}) as (model, _):
        got = (await model.complete(HELLO)).message
    assert got == {"role": "assistant", "content": "ab", "reasoning_details": details * 2}


async def test_a_provider_that_answers_5xx_is_given_up_after_two_minutes_and_a_busy_one_is_not() -> None:
    async with model_playing(error(500, "oops")) as (model, provider):
        with pytest.raises(ModelError, match=r"answered 500: oops \(\d+ tries in \d+ s.*past the 120 s of retries"):
            await model.complete(HELLO)
    assert 60 < sum(provider.pauses) <= 120
    async with model_playing(error(429, "slow down")) as (model, provider):
        with pytest.raises(ModelError, match="past the 600 s of retries"):
            await model.complete(HELLO)
    assert sum(provider.pauses) > 500


async def test_a_5xx_that_says_when_to_come_back_is_waited_for() -> None:
    answer = {"status": 503, "headers": {"Retry-After": "200"}, "body": ""}
    async with model_playing(answer, answer, reply("hi")) as (model, provider):
        assert (await model.complete(HELLO)).retries == 2
    assert sum(provider.pauses) > 399


async def test_who_waits_hears_of_each_failure_and_of_the_pause_the_provider_asks_for() -> None:
    answer = {"status": 429, "headers": {"Retry-After": "60"}, "body": {"error": {"message": "later"}}}
    heard: list[tuple[str, float]] = []
    async with model_playing(answer, reply("hi")) as (model, _):
        await model.complete(HELLO, on_failure=lambda why, pause: heard.append((why, pause)))
    assert heard[0][0].endswith("answered 429: later") and 60 <= heard[0][1] <= 61
