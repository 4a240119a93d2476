"""Requests of any kind: an id, a line in the log, the documented error, and never a stack trace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx2
import pytest
from pydantic import BaseModel
from starlette.requests import Request

from forkyard.server.app import App
from forkyard.server.bodies import BODY_LIMIT, read_body
from forkyard.server.endpoints import Call, Endpoint
from forkyard.server.envelope import Answer, ApiError
from forkyard.server.keys import Keys
from forkyard.server.serving import Server


class Wanted(BaseModel):
    count: int
    name: str = ""


async def _echo(call: Call) -> Answer:
    return Answer({"count": call.body.count, "id": call.path["id"]}, 201, {"nextCursor": "x"})


async def _break(call: Call) -> Answer:
    raise RuntimeError("the secret of the house")


async def _refuse(call: Call) -> Answer:
    raise ApiError(503, "no room: try again", "no_capacity", retry_after=0.5)


async def _nothing(call: Call) -> Answer:
    return Answer(status=204)


@pytest.fixture
def keys(server: Server) -> Keys:
    return server.keys


@pytest.fixture
def app(keys: Keys) -> App:
    return App(
        keys,
        [
            Endpoint("POST", "/things/{id}", _echo, "Echo", body=Wanted, success=(201,)),
            Endpoint("DELETE", "/things/{id}", _nothing, "Nothing", success=(204,)),
            Endpoint("GET", "/broken", _break, "Break", public=True),
            Endpoint("GET", "/full", _refuse, "Refuse", public=True),
            Endpoint("GET", "/t/{token}", _nothing, "By token", public=True),
        ],
    )


@pytest.fixture
def inside(app: App, key: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app)
    return httpx2.AsyncClient(transport=transport, base_url="http://server", headers={"Authorization": key})


async def test_an_answer_has_its_data_and_what_stands_beside_it(inside: httpx2.AsyncClient) -> None:
    reply = await inside.post("/things/a%20b", json={"count": 3})
    assert reply.status_code == 201
    assert reply.json() == {"success": True, "data": {"count": 3, "id": "a b"}, "nextCursor": "x"}


async def test_204_has_no_body(inside: httpx2.AsyncClient) -> None:
    reply = await inside.delete("/things/a")
    assert (reply.status_code, reply.content) == (204, b"")


async def test_a_fault_tells_its_request_and_nothing_of_itself(
    inside: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await inside.get("/broken", headers={"X-Request-Id": "mine-1"})
    assert reply.status_code == 500
    assert reply.json()["success"] is False
    assert "mine-1" in reply.json()["error"]
    assert "secret" not in reply.text and "Traceback" not in reply.text
    assert "the secret of the house" in caplog.text  # the log has it whole


async def test_a_refusal_has_its_code_and_says_when_to_come_back(inside: httpx2.AsyncClient) -> None:
    reply = await inside.get("/full")
    assert reply.status_code == 503
    assert reply.json() == {"success": False, "error": "no room: try again", "code": "no_capacity"}
    assert reply.headers["retry-after"] == "0.5"


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc-1.x_Y", True), ("a b", False), ("", False), ("x" * 128, True), ("x" * 129, False), ("a\tb", False)],
)
async def test_a_request_keeps_a_plain_id_of_its_own(inside: httpx2.AsyncClient, given: str, taken: bool) -> None:
    reply = await inside.get("/full", headers={"X-Request-Id": given})
    assert (reply.headers["x-request-id"] == given) is taken
    assert len(reply.headers.get_list("x-request-id")) == 1


async def test_the_access_log_has_a_line_without_query_and_tokens(
    inside: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forkyard.server.access")
    await inside.get("/t/very-secret?signature=hidden", headers={"X-Request-Id": "line-1"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "forkyard.server.access"]
    assert line.startswith("line-1 ") and " GET /t/{token} 204 " in line
    assert "secret" not in line and "hidden" not in line


async def test_a_path_cannot_forge_a_line_of_the_log(
    inside: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forkyard.server.access")
    reply = await inside.get("/nowhere%0Aforged%20line%1b[2J")
    assert reply.status_code == 404
    (line,) = [record.getMessage() for record in caplog.records if record.name == "forkyard.server.access"]
    assert "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize("given", [None, "", "key-", "Bearer", "Basic eDp5", "key-0123.abc", "Bearer key-x.y", "\xff"])
async def test_without_a_key_nothing_is_answered_or_read(app: App, given: str | None) -> None:
    headers = [] if given is None else [(b"Authorization", given.encode("latin-1"))]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server") as client:
        reply = await client.post("/things/a", content=b"{", headers=headers)
    assert reply.status_code == 401
    assert "forkyard key create" in reply.json()["error"]


async def test_a_key_is_taken_as_it_is_after_bearer_and_without_its_prefix(app: App, key: str) -> None:
    bare = key.removeprefix("key-")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server") as client:
        for given in (key, bare, f"Bearer {key}", f"bearer {bare}"):
            reply = await client.delete("/things/a", headers={"Authorization": given})
            assert reply.status_code == 204, given


BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "not an object": b"[]",
    "null": b"null",
    "a text for a number": b'{"count": "3"}',
    "a number for a text": b'{"count": 3, "name": 4}',
    "a truth for a number": b'{"count": true}',
    "a fraction": b'{"count": 1.5}',
    "a key missing": b"{}",
    "no UTF-8": b'{"count": 3, "name": "\xff"}',
    "half a surrogate pair": b'{"count": 3, "name": "\\ud800"}',
    "much nesting": b'{"count":' + b"[" * 100_000,
    "more than the body": b'{"count": 3} {"count": 4}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=list(BAD_BODIES))
async def test_a_bad_body_is_told_as_such(inside: httpx2.AsyncClient, body: bytes) -> None:
    reply = await inside.post("/things/a", content=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["code"] == "invalid_request"
    told = reply.json()["error"]
    assert told.startswith(("the body ", "count ", "name ")) and "Traceback" not in reply.text


async def test_a_path_that_is_not_there_and_a_method_that_is_not_offered(inside: httpx2.AsyncClient) -> None:
    assert (await inside.get("/nowhere")).status_code == 404
    assert (await inside.get("/things/a/b")).status_code == 404
    reply = await inside.get("/things/a")
    assert (reply.status_code, reply.headers["allow"]) == (405, "DELETE, POST")


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(http: httpx2.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    head = f"POST /api/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: {http.headers['authorization']}\r\n"
    writer.write(f"{head}Content-Length: {BODY_LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    assert line.startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_grows_too_large_is_cut_off(http: httpx2.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(BODY_LIMIT // 65536 + 2):
            yield b"x" * 65536

    reply = await http.post("/api/tokens", content=endless())
    assert reply.status_code == 413
    assert (await http.get("/api/tokens")).json()["data"]["tokens"][0]["name"] == "tests"


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(ApiError) as caught:
        await read_body(request, seconds=0.01)
    assert caught.value.status == 408
