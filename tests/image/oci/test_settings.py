from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from forkyard.errors import ConfigError
from forkyard.image.oci.settings import Credentials, Endpoint, credentials, endpoint

HUB = Endpoint("docker.io", "https://registry-1.docker.io")
OTHER = Endpoint("ghcr.io", "https://ghcr.io")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def test_registries_are_asked_encrypted_but_on_this_machine() -> None:
    urls = {name: endpoint(name, {}).url for name in ("docker.io", "ghcr.io", "a:5000", "localhost:5000", "127.1.2.3")}
    assert urls == {
        "docker.io": "https://registry-1.docker.io",
        "ghcr.io": "https://ghcr.io",
        "a:5000": "https://a:5000",
        "localhost:5000": "http://localhost:5000",
        "127.1.2.3": "http://127.1.2.3",
    }


def test_mirrors_and_insecure_registries_are_named_by_the_environment() -> None:
    said = {
        "FORKYARD_MIRRORS": "docker.io=http://m:1/, ghcr.io=https://n/x",
        "FORKYARD_INSECURE_REGISTRIES": "a:5000,b",
    }
    assert endpoint("docker.io", said) == Endpoint("docker.io", "http://m:1")
    assert endpoint("ghcr.io", said) == Endpoint("ghcr.io", "https://n/x")
    assert endpoint("a:5000", said) == Endpoint("a:5000", "http://a:5000")


@pytest.mark.parametrize("text", ["x", "docker.io=", "docker.io=m:1", "=http://m", "docker.io=http://u:p@m"])
def test_a_mirror_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="FORKYARD_MIRRORS: "):
        endpoint("docker.io", {"FORKYARD_MIRRORS": text})


async def found(config: Path, document: Any, at: Endpoint = OTHER) -> Credentials | None:
    config.write_text(document if isinstance(document, str) else json.dumps(document))
    return await credentials(at)


async def test_logins_are_found_where_docker_keeps_them(config: Path) -> None:
    auth = {"auth": base64.b64encode(b"me:pass:word").decode()}
    assert await credentials(OTHER) is None
    assert await found(config, {}) is None
    assert await found(config, {"auths": {"other": auth}}) is None
    for name in ("ghcr.io", "https://ghcr.io", "https://ghcr.io/"):
        assert await found(config, {"auths": {name: auth}}) == Credentials("me", "pass:word")
    assert await found(config, {"auths": {"https://index.docker.io/v1/": auth}}, HUB) == Credentials("me", "pass:word")
    assert await found(config, {"auths": {"ghcr.io": {"identitytoken": "t"}}}) == Credentials(token="t")
    assert await found(config, {"auths": {"ghcr.io": {}}}) is None


async def test_a_configuration_that_cannot_be_read_is_told_without_what_is_in_it(config: Path) -> None:
    for document in ("no json, secret", {"auths": {"ghcr.io": {"auth": "secret!"}}}):
        with pytest.raises(ConfigError) as caught:
            await found(config, document)
        assert str(config) in str(caught.value) and "secret" not in str(caught.value)


def helper(directory: Path, script: str) -> None:
    path = directory / "docker-credential-test"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_helpers_are_asked(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asks = {"credHelpers": {"ghcr.io": "test"}}
    helper(tmp_path, """read name; echo "{\\"Username\\": \\"of $name\\", \\"Secret\\": \\"$1\\"}" """)
    assert await found(config, asks) == Credentials("of ghcr.io", "get")
    assert await found(config, {"credsStore": "test"}) == Credentials("of ghcr.io", "get")
    helper(tmp_path, """echo '{"Username": "<token>", "Secret": "t"}'""")
    assert await found(config, asks) == Credentials(token="t")
    helper(tmp_path, "echo credentials not found in native keychain; exit 1")
    assert await found(config, asks) is None
    for script, complaint in (("echo secret; exit 3", "exit code 3"), ("echo secret", "no user and secret")):
        helper(tmp_path, script)
        with pytest.raises(ConfigError, match=complaint) as caught:
            await found(config, asks)
        assert "secret" not in str(caught.value).replace("user and secret", "")
    with pytest.raises(ConfigError, match="docker-credential-missing.*not installed"):
        await found(config, {"credsStore": "missing"})
    with pytest.raises(ConfigError, match="not installed"):
        await found(config, {"credsStore": "../../bin/sh"})


def test_the_repr_of_a_login_shows_nothing() -> None:
    assert "secret" not in repr(Credentials("secret-user", "secret-password", "secret-token"))
