"""Whatever a provider or a client does: the record has it, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from forkyard.errors import KeyReturnedError, ModelError, StoppedError
from forkyard.gateway import Bounds
from forkyard.gateway.decoding import REQUEST_LIMIT
from forkyard.gateway.dialects import CHAT
from forkyard.gateway.exchange import Incoming
from forkyard.gateway.relay import relay
from forkyard.gateway.transport import RouteTransport
from forkyard.gateway.upstreams import Upstream, Upstreams
from forkyard.model import ChatModel, Place
from forkyard.trace import Trace
from tests.gateway.parts import TALK, served, stage
from tests.gateway.upstream import KEY, Play, chat_body, chat_chunks, events, gateway_to, providing, sse, whole

HURRIED = Bounds(connect=60, idle=0.8, total=1.6)


async def test_429_with_retry_after_passes_through_and_is_on_record() -> None:
    error = {"error": {"message": "slow down", "type": "rate_limit"}}
    async with stage(whole(error, 429, {"retry-after": "7"})) as at:
        reply = await at.chat()
    assert (reply.status_code, reply.headers["retry-after"], reply.json()) == (429, "7", error)
    assert len(at.provider.seen) == 1  # the gateway never tries again
    assert (at.call.status_code, at.trace.steps) == (429, 0)
    assert "answered 429" in str(at.call.error) and "slow down" in str(at.call.error)
    assert at.trace.model_failing == at.call.error


@pytest.mark.parametrize("status", [400, 500, 502, 503, 529])
async def test_errors_of_the_provider_come_back_as_they_are(status: int) -> None:
    async with stage(whole(b"<html>odd</html>", status)) as at:
        reply = await at.chat()
    assert (reply.status_code, reply.content, at.call.status_code) == (status, b"<html>odd</html>", status)


async def test_an_unreachable_provider_is_503_in_the_dialect() -> None:
    async with providing() as gone:
        pass
    async with gateway_to(gone) as gateway:
        trace = Trace()
        route = gateway.open(trace, "m")
        async with served(route) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            reply = await client.post("/v1/messages", json={"model": "m", "max_tokens": 5, "messages": TALK})
        quick = ChatModel("m", gateway.upstream("m", CHAT).place, retry_seconds=0, transport=RouteTransport(route))
        with pytest.raises(ModelError, match="cannot be reached.*Check OPENAI_BASE_URL"):
            await quick.complete(TALK)
        await route.close()
    assert reply.status_code == 503
    assert reply.json()["type"] == "error" and "cannot be reached" in reply.json()["error"]["message"]
    assert trace.calls[0].status_code is None and "cannot be reached" in str(trace.calls[0].error)


async def test_a_slow_first_byte_ends_at_the_deadline() -> None:
    async with stage(Play(hold_at=-1), bounds=HURRIED) as at:
        reply = await at.chat()
        await at.provider.cut.wait()
    assert reply.status_code == 504 and "did not answer in time" in reply.json()["error"]["message"]
    assert "did not answer in time" in str(at.call.error)


async def test_a_stream_that_stalls_ends_at_the_deadline() -> None:
    async with stage(events(*chat_chunks({"content": "a"}), hold_at=2), bounds=HURRIED) as at:
        with pytest.raises(httpx2.RemoteProtocolError):
            await at.chat(stream=True)
    assert "did not answer in time" in str(at.call.error)
    assert [node.message["content"] for node in at.trace.graph.nodes] == ["hello", "a"]


async def test_a_reset_in_mid_stream_breaks_the_client_off_too() -> None:
    pieces = chat_chunks({"content": "a"}, {"content": "b"})
    got = b""
    async with stage(events(*pieces, reset_at=3)) as at:
        with pytest.raises(httpx2.RemoteProtocolError):
            async with at.client.stream("POST", "/v1/chat/completions", json=_asked(stream=True)) as reply:
                async for piece in reply.aiter_raw():
                    got += piece
    assert got == b"".join(pieces[:3])
    assert "broke off" in str(at.call.error) and at.call.status_code == 200
    assert at.trace.graph.nodes[-1].message["content"] == "ab"
    assert at.trace.steps == 0


async def test_a_reset_in_mid_body_is_502() -> None:
    cut = Play(pieces=[b'{"choices":', b"[]}"], reset_at=1)
    async with stage(cut) as at:
        reply = await at.chat()
    assert reply.status_code == 502 and "broke off" in str(at.call.error)


@pytest.mark.parametrize(
    "broken",
    [b"data: {not json\n\n", b"data: []\n\n", b'data: {"choices": 5}\n\n', b"data: 7\n\n", b"\xff\xfe\n\n", b":\n\n"],
)
async def test_malformed_events_pass_and_the_rest_is_read(broken: bytes) -> None:
    pieces = chat_chunks({"content": "a"}, {"content": "b"})
    pieces.insert(2, broken)
    async with stage(events(*pieces)) as at:
        reply = await at.chat(stream=True, stream_options={"include_usage": True})
    assert reply.content == b"".join(pieces)
    assert at.call.usage.input == 100
    assert at.trace.graph.nodes[-1].message["content"] == "ab"


async def test_a_stream_without_an_end_is_recorded_as_broken() -> None:
    async with stage(events(*chat_chunks({"content": "a"})[:2])) as at:
        await at.chat(stream=True)
    assert at.call.error == "its stream ended in the middle of the reply"


async def test_an_error_inside_a_stream_is_recorded() -> None:
    async with stage(events(*chat_chunks({"content": "a"})[:2], sse({"error": {"message": "overloaded"}}))) as at:
        await at.chat(stream=True)
    assert "overloaded" in str(at.call.error)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"null", b'{"choices": []}', b"[" * 100_000])
async def test_replies_that_are_none_pass_and_are_recorded_with_an_error(body: bytes) -> None:
    async with stage(whole(body)) as at:
        reply = await at.chat()
    assert (reply.status_code, reply.content) == (200, body)
    assert at.call.error is not None and at.call.status_code == 200


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"[" * 100_000, b'{"messages": []}'])
async def test_requests_that_are_none_go_nowhere(body: bytes) -> None:
    async with stage(whole(chat_body()), model=None) as at:
        reply = await at.client.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400 and reply.headers["x-should-retry"] == "false"
    assert at.provider.seen == [] and at.trace.calls == []


async def test_a_request_of_100_mb_is_refused_before_it_is_held() -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 1_000_000

    async with stage(whole(chat_body())) as at:
        for content in (pieces(), b" " * (REQUEST_LIMIT + 1)):
            try:
                reply = await at.client.post("/v1/chat/completions", content=content)
            except httpx2.WriteError:
                continue  # refused while it was still writing
            assert reply.status_code == 413
    assert at.provider.seen == []


async def test_a_reply_of_100_mb_is_cut_off() -> None:
    async with stage(Play(pieces=[b" " * 1_000_000] * 100)) as at:
        reply = await at.chat()
    assert reply.status_code == 502 and "larger than 64 MiB" in str(at.call.error)


async def test_when_the_client_goes_the_upstream_call_is_cancelled() -> None:
    async with stage(events(*chat_chunks({"content": "a"}), hold_at=2)) as at:
        async with at.client.stream("POST", "/v1/chat/completions", json=_asked(stream=True)) as reply:
            await anext(reply.aiter_raw())
            await at.provider.held.wait()
        await at.provider.cut.wait()
        await at.ended.acquire()
    assert "went away" in str(at.call.error)
    assert at.trace.graph.nodes[-1].message["content"] == "a"


async def test_a_stream_that_nobody_begins_to_read_lets_its_provider_go() -> None:
    async with stage(events(*chat_chunks({"content": "a"}), hold_at=1)) as at:
        body = json.dumps(_asked(stream=True)).encode()
        reply = await relay(at.route, Incoming("POST", "/chat/completions", "", [], body))
        assert not isinstance(reply.body, bytes)
        await reply.body.aclose()
        await at.provider.cut.wait()
    assert "went away" in str(at.call.error)


async def test_when_the_client_goes_before_the_first_byte_the_upstream_call_is_cancelled() -> None:
    async with stage(Play(hold_at=-1)) as at:
        asking = asyncio.create_task(at.chat())
        await at.provider.held.wait()
        asking.cancel()
        await at.provider.cut.wait()
        await at.ended.acquire()
    assert "went away" in str(at.call.error)


async def test_closing_the_route_cancels_what_is_under_way_and_refuses_the_rest() -> None:
    async with stage(Play(hold_at=-1)) as at:
        model = at.route.model()
        asking = [asyncio.create_task(at.chat()), asyncio.create_task(model.complete(TALK))]
        await at.provider.busy(2)
        await at.route.close()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        late = await at.chat()
        with pytest.raises(RuntimeError):
            await model.complete(TALK)  # its client is closed
    assert isinstance(outcomes[0], httpx2.Response) and outcomes[0].status_code == 409
    assert isinstance(outcomes[1], StoppedError) and outcomes[1].condition == "rollout_ended"
    assert (late.status_code, late.json()["error"]["code"]) == (409, "rollout_ended")
    assert len(at.trace.calls) == 2


async def test_a_provider_that_sends_the_key_back_is_not_relayed() -> None:
    told = whole({"error": {"message": f"the key {KEY} is wrong"}}, 401)
    async with stage(told, events(*chat_chunks({"content": KEY[:9]}, {"content": "x"}), sse(KEY))) as at:
        reply = await at.chat()
        with pytest.raises(httpx2.RemoteProtocolError):
            await at.chat(stream=True)
    assert reply.status_code == 400 and KEY not in reply.text and "fewer than 8 letters" in reply.text
    assert reply.headers["x-should-retry"] == "false"
    assert KEY not in json.dumps([call.error for call in at.trace.calls])


async def test_a_reply_with_the_key_is_not_asked_for_again() -> None:
    async with stage(whole(chat_body(f"it is {KEY}")), whole(chat_body("fine"))) as at:
        with pytest.raises(KeyReturnedError, match="sent back the key it was given") as caught:
            await at.route.model().complete(TALK)
    assert caught.value.lasting and KEY not in str(caught.value)
    assert len(at.provider.seen) == 1


def test_a_short_placeholder_for_a_key_makes_no_reply_a_leak() -> None:
    places = Place("http://127.0.0.1:1/v1", "--base-url", "OPENAI_API_KEY")
    for word in ("x", "fake", "bash", "EMPTY", "ollama"):
        table = Upstreams((Upstream(places, word), Upstream(places, KEY)))
        assert table.keys == [KEY]
        assert table.secrets.hide(f"a model that writes {word}") == f"a model that writes {word}"
    assert Upstream(places, "x").key_headers(CHAT, []) == {"authorization": "Bearer x"}


async def test_headers_of_credentials_and_cookies_stop_at_the_gateway() -> None:
    answer = whole(chat_body(), 200, {"set-cookie": "a=b", "connection": "x-hop", "x-hop": "1", "x-keeps": "1"})
    hostile = {"authorization": "Bearer mine", "x-api-key": "mine", "cookie": "c=d", "openai-organization": "o"}
    async with stage(answer) as at:
        reply = await at.client.post("/v1/chat/completions", json=_asked(), headers=hostile)
    sent = at.provider.seen[0].headers
    assert sent["authorization"] == f"Bearer {KEY}"
    assert not {"x-api-key", "cookie", "openai-organization"} & set(sent)
    assert "x-keeps" in reply.headers and not {"set-cookie", "x-hop"} & set(reply.headers)


def _asked(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": TALK, **more}
