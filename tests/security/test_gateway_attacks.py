"""A hostile program behind the loopback of its sandbox, and a hostile provider: neither gets past the gateway."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from forkyard.gateway import Budget
from forkyard.gateway.admission import AT_ONCE
from forkyard.gateway.dialects import Answered, Asked
from forkyard.gateway.route import RECORD_LIMIT
from forkyard.secrets import Secrets, redact
from forkyard.trace import AgentLimits, ModelCall, Trace
from forkyard.values import strict_json
from tests.gateway.parts import TALK, served, stage
from tests.gateway.upstream import KEY, Play, chat_body, chat_chunks, events, sse, whole

MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "x",
    "content": [],
    "stop_reason": None,
}


def said_by_messages(text: str) -> list[bytes]:
    """A stream of the messages dialect, whose last two pieces tell what it came to."""
    start = {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 10, "output_tokens": 1}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 900}}
    return [sse(each, str(each["type"])) for each in (start, block, delta, end, {"type": "message_stop"})]


async def leave_early(on: Any, path: str, body: dict[str, Any], mark: bytes) -> None:
    """Read a stream until a mark is there, and go before its end."""
    async with on.client.stream("POST", path, json=body) as response:
        seen = b""
        async for piece in response.aiter_raw():
            seen += piece
            if mark in seen:
                break
    await on.ended.acquire()


async def test_who_leaves_a_stream_before_its_usage_is_told_pays_all_that_was_set_aside() -> None:
    pieces = said_by_messages("all of the answer")
    body = {"model": "priced", "max_tokens": 1000, "stream": True, "messages": TALK}
    play = Play(200, {"content-type": "text/event-stream"}, pieces, hold_at=3, chunked=True)
    async with stage(play, model="priced", budget=Budget(usd=1.0)) as on:
        await leave_early(on, "/v1/messages", body, b"all of the answer")
        spent = on.route.admission.spent
    assert spent.tokens >= 1000 and spent.usd >= 0.002


async def test_who_leaves_every_stream_before_its_end_takes_a_turn_for_each() -> None:
    play = Play(
        200, {"content-type": "text/event-stream"}, chat_chunks({"content": "all of it"}), hold_at=2, chunked=True
    )
    async with stage(play, limits=AgentLimits(max_turns=2)) as on:
        for _ in range(2):
            await leave_early(
                on, "/v1/chat/completions", {"model": "m", "messages": TALK, "stream": True}, b"all of it"
            )
        third = await on.chat()
    assert third.status_code == 400 and "max_turns" in third.text


async def test_a_key_in_a_header_of_the_reply_stops_at_the_gateway() -> None:
    headers = {"x-debug-request": f"Bearer {KEY}", f"x-{KEY}": "1", "x-request-id": "r1"}
    for play in (
        whole(chat_body(), headers=headers),
        whole({"error": "no"}, 400, headers),
        Play(200, {"content-type": "text/event-stream", **headers}, chat_chunks({"content": "x"}), chunked=True),
    ):
        async with stage(play) as on:
            response = await on.chat()
            models = await on.client.get("/v1/models")
        assert KEY not in str(response.headers) + str(models.headers)
        assert response.headers["x-request-id"] == "r1"


@pytest.mark.parametrize("query", ["a=%00", "%", "[", "x=" + "a" * 60_000, "\u00e9", "//@:99999"])
async def test_no_query_is_a_fault_of_the_gateway(query: str, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(whole(chat_body())) as on:
        raw = json.dumps({"model": "m", "messages": TALK}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]))
        head = (
            b"POST /v1/chat/completions?" + query.encode("latin-1") + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        )
        writer.write(head + b"content-length: %d\r\n\r\n" % len(raw) + raw)
        said = await reader.read()
        writer.close()
        asked = [seen.path for seen in on.provider.seen]
    assert not said.startswith(b"HTTP/1.1 500"), said
    assert all(path.startswith("/v1/chat/completions") for path in asked)
    assert not caplog.records


async def test_a_rollout_whose_record_fills_memory_is_stopped() -> None:
    async with stage(whole(chat_body())) as on:
        on.route._recorded = RECORD_LIMIT - (60 << 20)  # so much has come already: to have it come would take a while
        before = await on.chat()
        asked = Asked([{"role": "user", "content": "x" * (60 << 20)}], [], {})
        on.route.record(ModelCall(), asked, Answered(None))
        last = await on.chat()
    assert before.status_code == 200
    assert last.status_code == 400 and "record_limit" in last.text


async def test_large_requests_that_wait_for_their_answers_are_bounded_together() -> None:
    """A provider that is slow does not make this process hold whatever a sandbox sends."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * (60 << 20)}]}).encode()
    async with stage(Play(hold_at=-1)) as on:
        asking: list[asyncio.Task[httpx2.Response]] = []
        refused = None
        while refused is None and len(asking) < 6:
            one = asyncio.create_task(on.client.post("/v1/chat/completions", content=body))
            sent = asyncio.create_task(on.provider.busy(len(asking) + 1))
            await asyncio.wait((one, sent), return_when=asyncio.FIRST_COMPLETED)
            sent.cancel()
            refused = one.result().status_code if one.done() else None
            asking.append(one)
        assert refused == 413
        on.provider.gate.set()
        await asyncio.gather(*asking[:-1])
        assert (await on.client.post("/v1/chat/completions", content=body)).status_code == 200


async def test_a_small_body_that_is_large_once_read_is_refused() -> None:
    async with stage(whole(chat_body())) as on:
        bomb = b'{"model":"m","messages":[' + b"[]," * (3 << 20) + b"[]]}"
        response = await on.client.post("/v1/chat/completions", content=bomb)
    assert response.status_code == 400 and "values" in response.text


@pytest.mark.parametrize("length", [b"9" * 5000, b"9" * 19, b"-1", b"\xb2", b"5, 6", b"0x10"])
async def test_no_length_is_a_fault_of_the_gateway(length: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(whole(chat_body())) as on:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: " + length + b"\r\n\r\n{}")
        writer.write_eof()
        said = await reader.read()
        writer.close()
        assert (await on.chat()).status_code == 200
    assert not said.startswith(b"HTTP/1.1 500")
    assert not caplog.records


@pytest.mark.parametrize("place", ["message", "content", "tools", "parameter"])
@pytest.mark.parametrize("depth", [90, 300, 480, 900, 100_000])
async def test_whatever_is_nested_in_a_request_it_is_refused_or_written_down(depth: int, place: str) -> None:
    for part in ('{"a":' * depth + "1" + "}" * depth, '["\\"]",' * depth + "1" + "]" * depth):
        given = dict.fromkeys(("message", "content", "tools", "parameter"), "1") | {place: part}
        body = (
            '{"model":"m","x":%(parameter)s,"tools":[%(tools)s],"messages":[{"content":%(content)s,"y":%(message)s}]}'
        )
        async with stage(whole(chat_body())) as on:
            response = await on.client.post("/v1/chat/completions", content=(body % given).encode())
        assert response.status_code == (200 if depth < 100 else 400), response.text
        assert len(on.trace.calls) == len(on.provider.seen)
        strict_json(redact(on.trace.to_record(), Secrets("some-secret-value")))


async def test_one_rollout_does_not_take_all_the_ways_to_the_provider() -> None:
    async with stage(Play(hold_at=-1)) as on:
        limits = httpx2.Limits(max_connections=300)
        async with httpx2.AsyncClient(base_url=on.url, timeout=30, trust_env=False, limits=limits) as client:
            body = {"model": "m", "messages": TALK}
            asking = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(300)]
            await on.provider.busy(AT_ONCE)
            on.provider.gate.set()
            await asyncio.gather(*asking)
    assert on.provider.most <= AT_ONCE and len(on.trace.calls) == 300


async def test_a_flood_of_connections_leaves_other_rollouts_their_model() -> None:
    async with stage(whole(chat_body())) as hostile:
        port = int(hostile.url.rpartition(":")[2])
        writers = []
        for _ in range(1500):
            try:
                writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
            except OSError:
                break
        for writer in writers[::2]:  # half of them have begun a request that never ends
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n{")
        other = hostile.gateway.open(Trace(), "m")
        async with (
            served(other) as url,
            httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
        ):
            answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": TALK})
        await other.close()
        before = len(hostile.provider.seen)
        await hostile.route.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    assert answer.status_code == 200 and before == 1


BOMB = gzip.compress(bytes(200 << 20), 1)
TOOL_CALL = {"index": 0, "id": "same", "type": "function", "function": {"name": "bash", "arguments": "x" * 1000}}
HOSTILE: dict[str, Play] = {
    "a usage that is none": whole(chat_body(usage={"prompt_tokens": -5, "completion_tokens": 10**18})),
    "a usage of words": whole(chat_body(usage={"prompt_tokens": "many", "completion_tokens": [1]})),
    "infinity": whole(
        b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1e400,"completion_tokens":NaN}}'
    ),
    "numbers of ten thousand digits": whole(
        b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":' + b"9" * 10000 + b"}}"
    ),
    "ten megabytes of arguments": whole(
        chat_body(None, tool_calls=[{**TOOL_CALL, "function": {"name": "b", "arguments": "[" * (10 << 20)}}])
    ),
    "ids that are the same": whole(chat_body(None, tool_calls=[TOOL_CALL, TOOL_CALL])),
    "bytes that are no UTF-8": whole(b'{"choices":[{"message":{"content":"\xff\xfe\xed\xa0\x80"}}]}'),
    "half a character": whole(b'{"choices":[{"message":{"content":"\\ud800"}}]}'),
    "a line of 20 MB": events(b"data: " + b"x" * (20 << 20)),
    "a bomb": Play(200, {"content-type": "application/json", "content-encoding": "gzip"}, [BOMB]),
    "a bomb in a stream": Play(
        200,
        {"content-type": "text/event-stream", "content-encoding": "gzip"},
        [BOMB],
        chunked=True,
    ),
    "no compression there is": Play(200, {"content-type": "application/json", "content-encoding": "br, gzip"}, [b"x"]),
    "too short a body": Play(200, {"content-type": "application/json"}, [b'{"choices":', b"[]}"], reset_at=1),
    "a status that is none": whole({}, 999),
    "an index of a million": events(
        sse({"choices": [{"index": 0, "delta": {"tool_calls": [{**TOOL_CALL, "index": 10**6}]}}]}), sse("[DONE]")
    ),
    "an index that is none": events(
        sse({"choices": [{"index": 0, "delta": {"tool_calls": [{**TOOL_CALL, "index": []}]}}]}), sse("[DONE]")
    ),
    "a header of many": Play(
        200, {"content-type": "application/json", **{f"x-{n}": "y" * 900 for n in range(60)}}, [b"{}"]
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("streamed", [False, True])
async def test_whatever_a_provider_answers_the_call_is_on_record_and_the_next_one_goes(
    case: str, streamed: bool
) -> None:
    asked = 0

    def answer(seen: Any) -> Play:
        nonlocal asked
        asked += 1
        return HOSTILE[case] if asked == 1 else whole(chat_body("fine"))

    async with stage(answer=answer, model="priced", budget=Budget(usd=5.0)) as on:
        with suppress(httpx2.TransportError, httpx2.DecodingError):
            await on.chat(stream=streamed, max_tokens=100)
        await asyncio.wait_for(on.ended.acquire(), 100)
        assert (await on.chat(max_tokens=100)).status_code == 200
        record = json.loads(strict_json(on.trace.to_record()))
        spent = on.route.admission.spent
    assert len(record["calls"]) == 2
    assert math.isfinite(spent.usd) and spent.usd >= 0 and spent.tokens >= 110
