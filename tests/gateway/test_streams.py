"""Many at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx2
import pytest

from tests.gateway.parts import TALK, stage
from tests.gateway.upstream import chat_chunks, events


@pytest.mark.slow
async def test_256_streams_hold_at_once() -> None:
    pieces = chat_chunks(*({"content": f"word {number} "} for number in range(8)))
    play = replace(events(*pieces), hold_at=5)
    body = {"model": "m", "messages": TALK, "stream": True, "stream_options": {"include_usage": True}}
    async with stage(play) as at:

        async def one(client: httpx2.AsyncClient) -> bytes:
            async with client.stream("POST", f"{at.url}/v1/chat/completions", json=body) as reply:
                return b"".join([piece async for piece in reply.aiter_raw()])

        limits = httpx2.Limits(max_connections=256)
        async with httpx2.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
            asking = [asyncio.create_task(one(client)) for _ in range(256)]
            await at.provider.busy(256)  # all of them have begun and none has ended
            at.provider.gate.set()
            got = await asyncio.gather(*asking)
    assert set(got) == {b"".join(pieces)}
    assert len(at.trace.calls) == 256 and all(call.error is None for call in at.trace.calls)
    assert at.trace.usage.input == 25_600
