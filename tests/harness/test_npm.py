from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.errors import HarnessError, SandboxError
from forkyard.harness import npm, packages
from forkyard.harness.npm import npm_package, npm_registry, push_package
from forkyard.sandbox import Sandbox, SandboxSpec
from forkyard.sandbox.local import LocalProvider
from tests.support.web import served

NAME, VERSION = "@scope/tool", "1.2.3-linux-x64"


def tarball(name: str = "package/tool", data: bytes = b"#!/bin/sh\necho tool\n") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o755
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def integrity_of(data: bytes) -> str:
    return f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"


class Registry:
    """A registry with one package; `said` is what it says of it, `archive` what it gives."""

    def __init__(self) -> None:
        self.archive = tarball()
        self.integrity = integrity_of(self.archive)
        self.said: bytes | None = None
        self.asked: list[str] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(path)
        dist = {"integrity": self.integrity, "tarball": f"{self.url}/tool.tgz"}
        answers = {
            f"/@scope%2Ftool/{VERSION}": self.said or json.dumps({"dist": dist}).encode(),
            "/tool.tgz": self.archive,
        }
        status, body = (200, answers[path]) if path in answers else (404, b"")
        writer.write(
            b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
        )
        await writer.drain()


@pytest.fixture
async def sandbox(local_of_test: LocalProvider) -> AsyncIterator[Sandbox]:
    """One in the loop of the test: the registry is served there."""
    yield await local_of_test.create(SandboxSpec())


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    registry = Registry()
    async with served(registry) as port:
        registry.url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"{registry.url}/")
        monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "npmrc"))
        monkeypatch.setenv("FORKYARD_HOME", str(tmp_path / "home"))
        yield registry


async def test_a_package_is_fetched_once_and_found_again_without_the_registry(registry: Registry) -> None:
    path = await npm_package(NAME, VERSION)
    assert path.read_bytes() == registry.archive
    assert registry.asked == [f"/@scope%2Ftool/{VERSION}", "/tool.tgz"]
    assert await npm_package(NAME, VERSION) == path
    assert len(registry.asked) == 2
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


async def test_a_package_that_was_changed_here_is_fetched_again(registry: Registry) -> None:
    path = await npm_package(NAME, VERSION)
    path.write_bytes(b"changed")
    assert (await npm_package(NAME, VERSION)).read_bytes() == registry.archive


async def test_other_bytes_than_were_announced_are_refused_and_not_kept(registry: Registry) -> None:
    registry.archive = tarball(data=b"other")
    with pytest.raises(HarnessError, match=r"@scope/tool@1.2.3-linux-x64 .* 127.0.0.1: it has other bytes"):
        await npm_package(NAME, VERSION)
    assert list(packages.packages_directory().iterdir()) == []


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b"{}", b'{"dist": null}', b'{"dist": {"tarball": "x"}}', b"[" * 100_000]
    + [b'{"dist": {"integrity": "%s", "tarball": "x"}}' % kind for kind in (b"sha1-AAAA", b"", b"sha512-?")],
)
async def test_a_package_without_a_sha_512_is_refused(registry: Registry, said: bytes) -> None:
    registry.said = said or b" "
    with pytest.raises(HarnessError, match="names no archive with a SHA-512"):
        await npm_package(NAME, VERSION)


async def test_a_package_that_is_not_there_is_told(registry: Registry) -> None:
    with pytest.raises(HarnessError, match=r"@scope/none@1.0.0 cannot be had of .*: the server says 404"):
        await npm_package("@scope/none", "1.0.0")


async def test_a_registry_that_cannot_be_reached_is_told_without_its_password(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://user:password@127.0.0.1:9")
    with pytest.raises(HarnessError, match="of the npm registry at 127.0.0.1: ConnectError") as caught:
        await npm_package(NAME, VERSION)
    assert "password" not in str(caught.value)


async def test_an_archive_beyond_the_bound_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "MOST_PACKED", 10)
    with pytest.raises(HarnessError, match="it is larger than 10 bytes"):
        await npm_package(NAME, VERSION)


async def test_a_package_is_unpacked_inside_the_sandbox(registry: Registry, sandbox: Sandbox) -> None:
    await push_package(sandbox, NAME, VERSION, "/opt/forkyard/tool")
    assert (await sandbox.run(["/opt/forkyard/tool/package/tool"])).stdout == "tool\n"


async def test_an_archive_that_climbs_out_is_refused_by_the_sandbox(registry: Registry, sandbox: Sandbox) -> None:
    registry.archive = tarball("../../escaped")
    registry.integrity = integrity_of(registry.archive)
    with pytest.raises(SandboxError):
        await push_package(sandbox, NAME, VERSION, "/opt/forkyard/tool")
    assert not (await sandbox.run("ls /opt/escaped /escaped")).ok


@pytest.mark.parametrize("archive", [b"no archive", gzip.compress(b"x" * 5000)[:-9]], ids=["no archive", "cut short"])
async def test_an_archive_that_cannot_be_unpacked_is_told(registry: Registry, sandbox: Sandbox, archive: bytes) -> None:
    registry.archive, registry.integrity = archive, integrity_of(archive)
    with pytest.raises(HarnessError, match="the archive of @scope/tool@1.2.3-linux-x64 cannot be unpacked"):
        await push_package(sandbox, NAME, VERSION, "/opt/forkyard/tool")


async def test_a_bomb_is_refused(registry: Registry, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "MOST_UNPACKED", 1000)
    with pytest.raises(HarnessError, match="unpacks to more than 1000 bytes: refused"):
        await push_package(sandbox, NAME, VERSION, "/opt/forkyard/tool")


async def test_what_was_used_longest_ago_makes_room(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = packages.packages_directory()
    for age, name in enumerate(("newer", "older", ".new-left", ".new-now"), 1):
        path = directory / name / "part"
        path.parent.mkdir()
        path.write_bytes(bytes(1000))
        if name != ".new-now":
            os.utime(path.parent, (1000 - age, 1000 - age))
    monkeypatch.setattr(packages, "CACHE_LIMIT", 2000 + len(registry.archive) + 128)
    path = await npm_package(NAME, VERSION)
    kept = {"newer", ".new-now", path.name, path.name.replace(".tgz", ".sha512")}
    assert {each.name for each in directory.iterdir()} == kept


def test_the_registry_is_the_one_npm_would_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "npmrc"
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(file))
    monkeypatch.setenv("MIRROR", "mirror.example")
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    file.write_text(
        "; registry=http://no\n# registry=http://no\n registry = http://${MIRROR}/npm/ \n@own:registry=http://own\n"
    )
    assert npm_registry("tool") == npm_registry("@scope/tool") == "http://mirror.example/npm"
    assert npm_registry("@own/tool") == "http://own"
    monkeypatch.setenv("npm_config_registry", "http://of-the-environment/")
    assert npm_registry("tool") == "http://of-the-environment"
