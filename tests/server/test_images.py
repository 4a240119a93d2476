"""Images over the wire: pulled once, told of while they are, and refused in words."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from forkyard.sandbox.local import LocalProvider
from forkyard.sandbox.subprocess import SubprocessProvider
from forkyard.server.envelope import ApiError
from forkyard.server.images import Images
from forkyard.server.serving import Server, opened
from tests.image.oci.parts import Made, made, member, tar
from tests.image.oci.servers import Answer, Request, answering

USER, PASSWORD = "somebody", "a-password-nobody-sees"


@asynccontextmanager
async def registry(image: Made, *, closed: bool = False) -> AsyncIterator[str]:
    """A registry of one image; "host:port"."""
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def answer(request: Request) -> Answer:
        if closed and request.headers.get("authorization") != f"Basic {basic}":
            return Answer(401, {"WWW-Authenticate": 'Basic realm="tests"'})
        if "/blobs/" in request.path:
            return Answer(body=image.blobs[request.path.rpartition("/")[2]])
        return Answer(body=image.manifest)

    async with answering(answer) as address:
        yield address


def small() -> Made:
    return made(tar(member("etc"), member("etc/motd", b"hello\n")))


async def ended(http: httpx2.AsyncClient, image_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            image: dict[str, Any] = (await http.get(f"/api/images/{image_id}")).json()["data"]
            if image["status"] != "building":
                return image


async def test_an_image_is_pulled_and_sandboxes_start_from_it(
    http: httpx2.AsyncClient, server: Server, local: LocalProvider
) -> None:
    async with registry(small()) as at:
        reply = await http.post("/api/images", json={"source": f"{at}/team/image:1"})
        assert reply.status_code == 202 and reply.json()["data"]["status"] == "building"
        image = await ended(http, reply.json()["data"]["image_id"])
    assert (image["status"], image["private"], image["failure_reason"]) == ("ready", False, None)
    assert image["digest"].startswith("sha256:") and image["canonical_source"] == f"{at}/team/image@{image['digest']}"
    assert await local.image(server.the(Images).ready(image["image_id"]).source) is not None


async def test_an_image_that_is_here_is_ready_when_no_registry_can_be_asked(http: httpx2.AsyncClient) -> None:
    async with registry(small()) as at:
        first = (await http.post("/api/images", json={"source": f"{at}/team/image:1"})).json()["data"]
        await ended(http, first["image_id"])
    again = (await http.post("/api/images", json={"source": f"{at}/team/image:1"})).json()["data"]
    assert again["image_id"] == first["image_id"]
    assert (await ended(http, first["image_id"]))["status"] == "ready"


async def test_credentials_are_used_and_kept_nowhere(http: httpx2.AsyncClient, server: Server) -> None:
    async with registry(small(), closed=True) as at:
        body = {"source": f"{at}/team/private:1"}
        refused = (await http.post("/api/images", json=body)).json()["data"]
        failed = await ended(http, refused["image_id"])
        assert (failed["status"], failed["failure_reason"]) == ("failed", "invalid_source")
        auth = {"username": USER, "password": PASSWORD}
        made_ = (await http.post("/api/images", json={**body, "registry_auth": auth})).json()["data"]
        image = await ended(http, made_["image_id"])
    assert (image["status"], image["private"]) == ("ready", True)
    assert image["image_id"] != refused["image_id"]
    files = [path for path in (server.home / "server").iterdir() if path.is_file()]
    assert all(PASSWORD.encode() not in path.read_bytes() for path in files)


async def test_an_image_that_is_not_there_fails_in_words(http: httpx2.AsyncClient, server: Server) -> None:
    image = (await http.post("/api/images", json={"source": "no-such-image:1"})).json()["data"]
    failed = await ended(http, image["image_id"])
    assert failed["status"] == "failed" and failed["failure_message"]
    with pytest.raises(ApiError) as caught:
        server.the(Images).ready(image["image_id"])
    assert (caught.value.status, caught.value.code) == (409, "image_not_ready")


@pytest.mark.parametrize("source", ["", "a//b:1", "../../etc/passwd", "a b", "x@sha256:1", "x" * 600, "\u0000"])
async def test_what_is_no_reference_is_told_as_such(http: httpx2.AsyncClient, source: str) -> None:
    reply = await http.post("/api/images", json={"source": source})
    assert reply.status_code == 400, reply.text


async def test_an_unknown_id_is_told_as_such(http: httpx2.AsyncClient) -> None:
    for image_id in ("img-0", "..", "%00", "x" * 1000):
        assert (await http.get(f"/api/images/{image_id}")).status_code == 404


async def test_what_was_under_way_when_a_server_ended_was_interrupted(tmp_path: Path, local: LocalProvider) -> None:
    begun = asyncio.Event()

    def answer(request: Request) -> Answer:
        begun.set()
        return Answer(503)

    async with answering(answer) as at:
        async with opened(tmp_path, local) as server:
            image = server.the(Images).request(f"{at}/slow:1", None)
            await begun.wait()
        async with opened(tmp_path, local) as server:
            found = server.the(Images).get(image.image_id)
    assert (found.status, found.failure_reason) == ("failed", "interrupted")


async def test_a_provider_without_images_says_so(tmp_path: Path) -> None:
    async with SubprocessProvider() as provider, opened(tmp_path, provider) as server:
        with pytest.raises(ApiError) as caught:
            server.the(Images).request("debian:12", None)
    assert caught.value.status == 501
