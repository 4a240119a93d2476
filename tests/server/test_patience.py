"""Answers that take long: spaces until they come, and the work ends with its client."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from forkyard.server.app import App
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError
from forkyard.server.patience import kept_alive
from forkyard.server.serving import Server

BEAT = 0.02


class Work:
    """Work that is done when it is let, and how it ended."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.outcome: Answer | Exception = Answer({"exitCode": 0})
        self.ended = asyncio.Event()

    async def do(self) -> Answer:
        try:
            await self.let.wait()
            if isinstance(self.outcome, Exception):
                raise self.outcome
            return self.outcome
        finally:
            self.ended.set()


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def client(server: Server, work: Work) -> httpx2.AsyncClient:
    async def handle(call: Call) -> object:
        return await kept_alive(call, work.do(), BEAT)

    app = App(server.keys, [Endpoint("POST", "/work", handle, "Work", public=True)])  # type: ignore[arg-type]
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server")


async def test_what_is_done_soon_is_answered_as_ever(client: httpx2.AsyncClient, work: Work) -> None:
    work.let.set()
    reply = await client.post("/work")
    assert reply.text[0] == "{" and reply.json()["data"] == {"exitCode": 0}
    work.outcome = ApiError(504, "it took too long: raise its limit", "timed_out")
    reply = await client.post("/work")
    assert (reply.status_code, reply.json()["code"]) == (504, "timed_out")


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Answer({"exitCode": 3}), {"success": True, "data": {"exitCode": 3}}),
        (ApiError(504, "too long", "timed_out"), {"success": False, "error": "too long", "code": "timed_out"}),
    ],
)
async def test_what_takes_long_is_announced_by_spaces(
    client: httpx2.AsyncClient, work: Work, outcome: Answer | Exception, told: object
) -> None:
    work.outcome = outcome
    asyncio.get_running_loop().call_later(5 * BEAT, work.let.set)
    reply = await client.post("/work")
    assert reply.status_code == 200 and reply.text.startswith(" ")
    assert json.loads(reply.text) == told


async def test_a_fault_after_the_first_space_is_told_in_the_body(client: httpx2.AsyncClient, work: Work) -> None:
    work.outcome = RuntimeError("the secret of the house")
    asyncio.get_running_loop().call_later(3 * BEAT, work.let.set)
    reply = await client.post("/work")
    assert reply.json()["success"] is False and "secret" not in reply.text


async def test_the_work_ends_when_its_client_goes(client: httpx2.AsyncClient, work: Work) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4 * BEAT):
            await client.post("/work")
    async with asyncio.timeout(100):
        await work.ended.wait()
