"""How a client gets in, and what it tells whom."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from forkyard.image import ImageSourceError, pull
from forkyard.sandbox.local import LocalProvider
from tests.image.oci.conftest import PASSWORD, USER
from tests.image.oci.parts import made, member, publish, tar
from tests.image.oci.servers import Answer, Guarded, Request, TokenServer, answering, guarded_registry

LAYER = tar(member("etc/motd", b"hello"))
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
REFRESH = "a-refresh-token-nobody-may-see"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (apt-get install openssl)")
    with guarded_registry(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture
def tokens(guarded: Guarded) -> TokenServer:
    return TokenServer(guarded, frozenset({f"Basic {AUTH}"}), frozenset({REFRESH}))


def log_in(monkeypatch: pytest.MonkeyPatch, directory: Path, registry: str, **entry: str) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    (directory / "config.json").write_text(json.dumps({"auths": {registry: entry}}))


async def test_a_token_is_got_with_a_password_and_without(
    provider: LocalProvider, guarded: Guarded, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{guarded.address}/team/guarded:1"
    async with answering(tokens.answer, guarded.port):
        with pytest.raises(ImageSourceError, match="refused .* wants a login: `docker login"):
            await publish(name, made(LAYER))
        log_in(monkeypatch, tmp_path, guarded.address, auth=AUTH)
        await publish(name, made(LAYER))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
        tokens.requests.clear()
        assert (await pull(provider, name)).applied == 1
    (request,) = tokens.requests  # one token for the manifest and all blobs
    assert "authorization" not in request.headers and "repository%3Ateam%2Fguarded%3Apull&" in request.path


async def test_a_kept_token_stands_for_the_password(
    provider: LocalProvider, guarded: Guarded, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, tmp_path, guarded.address, identitytoken=REFRESH)
    name = f"{guarded.address}/team/kept:1"
    async with answering(tokens.answer, guarded.port):
        await publish(name, made(LAYER))
        assert (await pull(provider, name)).applied == 1
    assert {(request.method, request.path) for request in tokens.requests} == {("POST", "/token")}


async def test_a_login_that_gets_no_token_is_told_and_not_shown(
    provider: LocalProvider, guarded: Guarded, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"wrong-{REFRESH}"
    log_in(monkeypatch, tmp_path, guarded.address, identitytoken=secret)
    async with answering(tokens.answer, guarded.port):
        with pytest.raises(ImageSourceError, match=r"gave no token for .* \(status 401 of .*docker login") as caught:
            await pull(provider, f"{guarded.address}/team/wrong:1")
    assert secret not in str(caught.value)


async def test_a_login_does_not_follow_to_another_host(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a download is redirected to, nor where an upload is to go."""
    image = made(LAYER)
    asked: list[Request] = []

    def storage(request: Request) -> Answer:
        asked.append(request)
        digest = request.path.rpartition("/")[2]
        return Answer(201) if request.method == "PUT" else Answer(body=image.blobs[digest])

    def registry(request: Request) -> Answer:
        if request.headers.get("authorization") != f"Basic {AUTH}":
            return Answer(401, {"WWW-Authenticate": 'Basic realm="tests"'})
        if request.method == "HEAD":
            return Answer(404)
        if request.method == "POST":
            return Answer(202, {"Location": f"http://{elsewhere}/upload?state=1"})
        if request.method == "PUT":
            return Answer(201)
        if "/blobs/" in request.path:
            return Answer(307, {"Location": f"http://{elsewhere}/{request.path.rpartition('/')[2]}"})
        return Answer(body=image.manifest)

    async with AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(answering(storage))
        address = await stack.enter_async_context(answering(registry))
        log_in(monkeypatch, tmp_path, address, auth=AUTH)
        await publish(f"{address}/moved:1", image)
        assert (await pull(provider, f"{address}/moved:1")).applied == 1
    assert [request.method for request in asked] == ["PUT", "PUT", "GET", "GET"]
    assert all(request.path.startswith("/upload?state=1&digest=sha256") for request in asked[:2])
    for request in asked:
        assert "authorization" not in request.headers
        assert AUTH not in str(request) and PASSWORD not in str(request)
