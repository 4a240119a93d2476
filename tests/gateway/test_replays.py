"""Requests that a client sends again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest

from forkyard.gateway.replays import KEPT_REPLIES, KEPT_SECONDS
from tests.gateway.parts import TALK, Stage, served, stage
from tests.gateway.upstream import Play, Seen, chat_body, chat_chunks, events, whole

PATH = "/v1/chat/completions"


def numbered() -> Any:
    """Answers each request with its number."""
    count = iter(range(1, 1000))

    def answer(seen: Seen) -> Play:
        return whole(chat_body(str(next(count))))

    return answer


async def ask(at: Stage, key: str = "", tries: str = "", text: str = "hello", **body: Any) -> httpx2.Response:
    headers = {"idempotency-key": key} if key else {}
    headers |= {"x-stainless-retry-count": tries} if tries else {}
    talk = [{"role": "user", "content": text}]
    return await at.client.post(PATH, json={"model": "m", "messages": talk, **body}, headers=headers)


def said(reply: httpx2.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


async def test_a_request_with_the_key_of_one_before_gets_the_same_reply_and_is_one_call() -> None:
    async with stage(answer=numbered()) as at:
        first, again, other = [await ask(at, key) for key in ("a", "a", "b")]
    assert (first.content, said(first), said(other)) == (again.content, "1", "2")
    assert len(at.provider.seen) == len(at.trace.calls) == at.trace.steps == 2


async def test_a_key_of_another_request_is_refused() -> None:
    async with stage(answer=numbered()) as at:
        await ask(at, "a")
        reply = await ask(at, "a", text="something else")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "idempotency_key_reused")
    assert len(at.provider.seen) == 1


async def test_a_key_is_known_to_its_rollout_alone_and_never_to_the_provider() -> None:
    async with stage(answer=numbered()) as at:
        await ask(at, "a")
        trace = type(at.trace)()
        other = at.gateway.open(trace, "m")
        async with served(other) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            body = {"model": "m", "messages": TALK}
            reply = await client.post(PATH, json=body, headers={"idempotency-key": "a"})
        await other.close()
    assert said(reply) == "2"
    assert not [seen for seen in at.provider.seen if "idempotency-key" in seen.headers]


async def test_the_same_bytes_are_a_turn_of_their_own_unless_the_client_says_that_it_tries_again() -> None:
    async with stage(answer=numbered()) as at:
        replies = [said(await ask(at, tries=tries)) for tries in ("", "", "0", "0", "1", "2")]
    assert replies == ["1", "2", "3", "4", "4", "4"]


async def test_what_failed_is_tried_anew() -> None:
    plays = [whole({"error": {"message": "busy"}}, 500), whole(b'{"choices": []}'), whole(chat_body("good"))]
    async with stage(*plays) as at:
        replies = [await ask(at, "a", str(tries)) for tries in range(4)]
    assert [reply.status_code for reply in replies] == [500, 200, 200, 200]
    assert [said(reply) for reply in replies[2:]] == ["good", "good"]
    assert len(at.provider.seen) == 3


async def test_a_streamed_reply_comes_again_as_it_was() -> None:
    pieces = chat_chunks({"content": "a"}, {"content": "b"})
    async with stage(events(*pieces)) as at:
        replies = [await ask(at, "a", stream=True, stream_options={"include_usage": True}) for _ in range(2)]
    assert [reply.content for reply in replies] == [b"".join(pieces)] * 2
    assert {reply.headers["content-type"] for reply in replies} == {"text/event-stream; charset=utf-8"}
    assert len(at.provider.seen) == len(at.trace.calls) == 1


async def test_one_that_comes_while_the_first_is_under_way_waits_for_its_reply() -> None:
    both: tuple[dict[str, Any], ...] = ({}, {"stream": True})
    for more in both:
        play = events(*chat_chunks({"content": "a"}), hold_at=1) if more else Play(pieces=[b""], hold_at=-1)
        if not more:
            play.pieces = whole(chat_body("a")).pieces
        async with stage(play) as at:
            first = asyncio.create_task(ask(at, "a", **more))
            await at.provider.held.wait()
            again = asyncio.create_task(ask(at, "a", **more))
            at.provider.gate.set()
            one, other = await asyncio.gather(first, again)
        assert one.content == other.content and one.status_code == 200
        assert len(at.provider.seen) == len(at.trace.calls) == 1


async def test_a_client_that_gave_up_waiting_gets_the_reply_of_the_call_it_began() -> None:
    slow = Play(pieces=whole(chat_body("slow")).pieces, hold_at=-1)
    async with stage(slow) as at:
        first = asyncio.create_task(ask(at, tries="0"))
        await at.provider.held.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = asyncio.create_task(ask(at, tries="1"))
        at.provider.gate.set()
        reply = await again
    assert said(reply) == "slow" and not at.provider.seen[0].cut
    assert (len(at.provider.seen), len(at.trace.calls), at.trace.steps) == (1, 1, 1)


async def test_the_end_of_the_route_ends_a_call_that_was_carried_on_for_a_client_that_has_gone() -> None:
    async with stage(Play(hold_at=-1)) as at:
        first = asyncio.create_task(ask(at, "a"))
        await at.provider.held.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await at.route.close()
        await at.provider.cut.wait()
    assert "went away" in str(at.call.error)


async def test_when_the_first_broke_off_one_that_waited_calls_itself() -> None:
    broken = Play(pieces=[b"{", b"}"], hold_at=-1, reset_at=1)
    async with stage(broken, whole(chat_body("good"))) as at:
        first = asyncio.create_task(ask(at, "a"))
        await at.provider.held.wait()
        again = asyncio.create_task(ask(at, "a"))
        at.provider.gate.set()
        replies = await asyncio.gather(first, again)
    assert sorted(reply.status_code for reply in replies) == [200, 502]
    assert len(at.provider.seen) == 2


async def test_so_many_replies_are_kept_and_for_so_long() -> None:
    async with stage(answer=numbered()) as at:
        for number in range(KEPT_REPLIES + 1):
            await ask(at, f"k{number}")
        kept, gone = await ask(at, "k1"), await ask(at, "k0")
        assert (said(kept), said(gone)) == ("2", str(KEPT_REPLIES + 2))
        for tried in at.route.replays._tried.values():
            tried.at -= KEPT_SECONDS
        assert said(await ask(at, "k5")) == str(KEPT_REPLIES + 3)


@pytest.mark.parametrize("failing", [1, 2])
async def test_the_real_client_tries_again_what_failed(failing: int) -> None:
    plays = [whole({"error": {"message": "busy"}}, 500, {"retry-after-ms": "1"})] * failing
    async with (
        stage(*plays, whole(chat_body("good"))) as at,
        openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="x", max_retries=2) as client,
    ):
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert reply.choices[0].message.content == "good"
    assert len(at.provider.seen) == failing + 1 and at.trace.steps == 1
