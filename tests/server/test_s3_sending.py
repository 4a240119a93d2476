"""Work that takes long is heard of, and ends in one whole document whether it went well or not."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any
from xml.etree import ElementTree

import pytest

from forkyard.server.s3.replies import Reply, told
from forkyard.server.s3.sending import Way
from forkyard.server.s3.xml import document


class Client:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.heard = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.pieces.append(message["body"])
        if len(self.pieces) > 3:
            self.heard.set()

    async def receive(self) -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("failed", [False, True])
async def test_spaces_come_before_the_document(failed: bool) -> None:
    client = Client()
    error = Reply(500, {}, document("Error", [("Code", "InternalError")], namespace=False))

    async def work() -> Reply:
        await client.heard.wait()
        return error if failed else told("CopyObjectResult", [("ETag", "x")])

    await Way("PUT", "id", client.receive, client.send, silence=0.01).tell_when_done(work())
    assert client.status == 200 and b"content-length" not in client.headers
    assert client.pieces[1:4] == [b" "] * 3
    root = ElementTree.fromstring(b"".join(client.pieces))
    assert root.tag.rpartition("}")[2] == ("Error" if failed else "CopyObjectResult")


async def test_quick_work_is_answered_as_it_is() -> None:
    client = Client()

    async def work() -> Reply:
        return Reply(412, {}, b"no")

    await Way("PUT", "id", client.receive, client.send).tell_when_done(work())
    assert (client.status, client.pieces) == (412, [b"no"])
