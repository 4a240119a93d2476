"""What goes to the provider and what comes back."""

from __future__ import annotations

import json

import httpx2
import pytest

from forkyard.errors import ModelError
from forkyard.model import Sampling
from forkyard.trace import Usage
from tests.gateway.parts import TALK, stage
from tests.gateway.upstream import KEY, chat_body, chat_chunks, events, whole, zipped


async def test_bytes_go_on_and_come_back_as_they_are() -> None:
    odd = b'{ "model":"m",  "messages": [{"content":"hello","role":"user"}], "x_unknown": {"b":1,"a":[1.50]} }'
    answer = json.dumps(chat_body(), indent=1).encode()
    async with stage(whole(answer, 200, {"x-request-id": "r1"})) as at:
        reply = await at.client.post("/v1/chat/completions", content=odd, headers={"x-mine": "yes"})
    (seen,) = at.provider.seen
    assert seen.body == odd
    assert (seen.path, seen.headers["x-mine"], seen.headers["authorization"]) == (
        "/v1/chat/completions",
        "yes",
        f"Bearer {KEY}",
    )
    assert (reply.status_code, reply.content, reply.headers["x-request-id"]) == (200, answer, "r1")
    call = at.call
    assert (call.model, call.dialect, call.status_code, call.finish_reason) == ("m", "chat", 200, "stop")
    assert call.usage == Usage(input=100, output=10)
    assert call.request["x_unknown"] == {"b": 1, "a": [1.5]}
    assert [node.message["content"] for node in at.trace.graph.nodes] == ["hello", "hi"]
    assert at.trace.steps == 1


async def test_a_stream_comes_through_as_it_is() -> None:
    pieces = chat_chunks({"content": "a"}, {"content": "b"})
    async with stage(events(*pieces)) as at:
        reply = await at.chat(stream=True, stream_options={"include_usage": True})
    assert reply.content == b"".join(pieces)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (at.call.usage.input, at.call.finish_reason, at.call.error) == (100, "stop", None)


async def test_usage_the_client_did_not_ask_for_is_asked_for_and_hidden() -> None:
    pieces = chat_chunks({"content": "a"})
    silent = [piece for piece in pieces if b'"usage"' not in piece]
    nulls = [piece.replace(b"]}", b'], "usage": null}') for piece in pieces]
    async with stage(events(*nulls)) as at:
        reply = await at.chat(stream=True)
    assert at.provider.seen[0].json["stream_options"] == {"include_usage": True}
    assert reply.content == b"".join(silent)
    assert at.call.usage == Usage(input=100, output=10)


async def test_gzip_comes_through_and_is_read() -> None:
    async with stage(zipped(json.dumps(chat_body()).encode())) as at:
        reply = await at.chat()
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.json()["choices"][0]["message"]["content"] == "hi"
    assert at.call.usage.input == 100


async def test_alias_and_sampling_change_only_their_members() -> None:
    async with stage(whole(chat_body()), upstream={"alias": "real"}, sampling=Sampling(temperature=0.5)) as at:
        await at.client.post("/chat/completions", json={"z": 1, "model": "other", "messages": TALK, "a": 2})
    assert list(at.provider.seen[0].json.items()) == [
        ("z", 1),
        ("model", "real"),
        ("messages", TALK),
        ("a", 2),
        ("temperature", 0.5),
    ]


async def test_a_harness_in_this_process_needs_no_socket() -> None:
    async with stage(whole(chat_body()), whole({"error": {"message": "bad"}}, 400)) as at:
        model = at.route.model()
        reply = await model.complete(TALK)
        assert reply.recorded and reply.message["content"] == "hi"
        assert at.call.usage.input == 100
        with pytest.raises(ModelError, match="answered 400: bad"):
            await model.complete(TALK)
    assert [call.error is None for call in at.trace.calls] == [True, False]


async def test_the_list_of_models_leads_nowhere_else() -> None:
    async with stage(whole({"data": []})) as at:
        for path in (
            "/v1/models/..%2Ffiles",
            "/v1/models/../files",
            "/v1/models/a/%2e%2e/b",
            "/v1/modelsx",
            "/v1/files",
        ):
            raw = httpx2.URL(f"{at.url}/").copy_with(raw_path=path.encode())
            assert (await at.client.get(raw)).status_code == 404, path
        assert (await at.client.get("/v1/models/org/a%3Fb?x=1")).status_code == 200
    assert [seen.path for seen in at.provider.seen] == ["/v1/models/org/a%3Fb?x=1"]


async def test_time_that_a_program_waits_for_its_model_is_on_the_trace() -> None:
    async with stage(whole(chat_body())) as at:
        await at.chat()
        waited = at.trace.timing.model_ms
        await at.client.get("/v1/models")
    assert waited > 0 and at.trace.timing.model_ms == waited


async def test_an_error_in_a_good_reply_is_told() -> None:
    async with stage(whole({"error": {"message": "no GPU", "code": 503}})) as at:
        await at.chat()
    assert "no GPU" in str(at.call.error)
