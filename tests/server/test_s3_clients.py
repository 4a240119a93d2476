"""The S3 face to the clients people have: the vendor's own, s3cmd and rclone."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import archil
import pytest
from archil.errors import ArchilS3Error

from forkyard.disk import KeyPair
from forkyard.server.address import Address
from tests.server.s3parts import Serving, serving

MIB = 1 << 20
CONTENT = random.Random(2).randbytes(20 * MIB + 11)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture(scope="module")
def pair(s3: Serving) -> KeyPair:
    return s3.pair(s3.disk("data"))


@pytest.fixture
def client(address: Address, key: str) -> archil.Archil:
    return archil.Archil(api_key=key, region="aws-us-east-1", base_url=address.origin, s3_base_url=address.origin)


async def with_disk(client: archil.Archil, check: Callable[[Any], None]) -> None:
    """Let a check use a disk, in a thread, since the server is in this one."""

    def checked() -> None:
        with client:
            check(client.disks.create(name="archil").disk)

    await asyncio.to_thread(checked)


async def test_archil_puts_gets_and_appends(client: archil.Archil) -> None:
    await with_disk(client, check_puts)


async def test_archil_lists_and_deletes(client: archil.Archil) -> None:
    await with_disk(client, check_lists)


async def test_archil_puts_what_is_large_in_parts(client: archil.Archil) -> None:
    await with_disk(client, check_parts)


def check_puts(disk: Any) -> None:
    disk.put_object("a/b c.txt", b"hello", content_type="text/plain")
    assert disk.get_object("a/b c.txt") == b"hello"
    assert disk.object_exists("a/b c.txt") and not disk.object_exists("a/b")
    assert disk.head_object("a/b c.txt").size == 5
    disk.put_object("log", b"")
    for line in (b"one\n", b"two\n"):
        disk.append_object("log", line)
    assert disk.get_object("log") == b"one\ntwo\n"
    with pytest.raises(ArchilS3Error) as caught:
        disk.append_object("log", b"x" * (MIB + 1))
    assert (caught.value.code, caught.value.status) == ("EntityTooLarge", 400)
    with pytest.raises(ArchilS3Error) as caught:
        disk.get_object("nothing")
    assert (caught.value.code, caught.value.status) == ("NoSuchKey", 404)
    assert caught.value.request_id


def check_lists(disk: Any) -> None:
    keys = [f"list/{name}" for name in ("a", "b/1", "b/2", "c")]
    for key in keys:
        disk.put_object(key, key.encode())
    assert [each.key for each in disk.list_objects("list/", recursive=True).objects] == keys
    page = disk.list_objects("list/", recursive=False)
    assert [each.key for each in page.objects] == ["list/a", "list/c"]
    assert list(page.common_prefixes) == ["list/b/"]
    disk.delete_object("list/a")
    answer = disk.delete_objects([*keys, "never there"])
    assert len(answer.deleted) == 5 and not answer.errors
    assert not disk.list_objects("list/", recursive=True).objects


def check_parts(disk: Any) -> None:
    disk.put_object("big", CONTENT)
    assert disk.get_object("big") == CONTENT
    assert disk.head_object("big").etag.strip('"').endswith("-2")
    upload = disk.multipart.create("parts")
    part = disk.multipart.upload_part("parts", upload.upload_id, 1, b"x" * 100)
    assert [each.part_number for each in disk.multipart.list_parts("parts", upload.upload_id).parts] == [1]
    assert [each.key for each in disk.multipart.list_uploads().uploads] == ["parts"]
    disk.multipart.complete("parts", upload.upload_id, [part])
    assert disk.get_object("parts") == b"x" * 100


def run(*command: str, env: dict[str, str] | None = None) -> str:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("s3cmd"), reason="needs s3cmd (apt-get install s3cmd)")
def test_s3cmd(s3: Serving, pair: KeyPair, tmp_path: Path) -> None:
    config = tmp_path / "s3cfg"
    lines = [
        "[default]",
        f"access_key = {pair.access_key}",
        f"secret_key = {pair.secret_key}",
        f"host_base = 127.0.0.1:{s3.port}",
        f"host_bucket = 127.0.0.1:{s3.port}",
        "use_https = False",
        "multipart_chunk_size_mb = 5",
    ]
    config.write_text("\n".join(lines) + "\n")

    def s3cmd(*arguments: str) -> str:
        return run("s3cmd", "-c", str(config), "--no-progress", *arguments)

    tree = tmp_path / "tree"
    (tree / "deep er").mkdir(parents=True)
    (tree / "deep er" / "é &.txt").write_text("hello")
    (tree / "big").write_bytes(CONTENT)
    s3cmd("sync", f"{tree}/", "s3://data/tree/")
    assert "s3://data/tree/deep er/é &.txt" in s3cmd("ls", "--recursive", "s3://data/")
    assert "s3://data" in s3cmd("ls")
    (tmp_path / "back").mkdir()
    s3cmd("sync", "s3://data/tree/", f"{tmp_path / 'back'}/")
    assert (tmp_path / "back" / "deep er" / "é &.txt").read_text() == "hello"
    assert (tmp_path / "back" / "big").read_bytes() == CONTENT
    s3cmd("cp", "s3://data/tree/deep er/é &.txt", "s3://data/copy")
    s3cmd("mv", "s3://data/copy", "s3://data/moved")
    s3cmd("del", "--recursive", "--force", "s3://data/tree/")
    s3cmd("del", "s3://data/moved")
    assert s3cmd("ls", "--recursive", "s3://data/").strip() == ""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("rclone"), reason="needs rclone (apt-get install rclone)")
def test_rclone(s3: Serving, pair: KeyPair, tmp_path: Path) -> None:
    env = {
        "RCLONE_CONFIG": str(tmp_path / "none.conf"),
        "RCLONE_CONFIG_Y_TYPE": "s3",
        "RCLONE_CONFIG_Y_PROVIDER": "Other",
        "RCLONE_CONFIG_Y_ENDPOINT": s3.url,
        "RCLONE_CONFIG_Y_ACCESS_KEY_ID": pair.access_key,
        "RCLONE_CONFIG_Y_SECRET_ACCESS_KEY": pair.secret_key,
        "RCLONE_S3_UPLOAD_CUTOFF": "6M",
        "RCLONE_S3_CHUNK_SIZE": "5M",
    }
    tree = tmp_path / "tree"
    (tree / "deep er").mkdir(parents=True)
    (tree / "deep er" / "é &.txt").write_text("hello")
    (tree / "big").write_bytes(CONTENT)
    run("rclone", "sync", str(tree), "y:data/rclone", env=env)
    run("rclone", "check", "--download", str(tree), "y:data/rclone", env=env)
    assert "deep er/é &.txt" in run("rclone", "lsf", "-R", "y:data/rclone", env=env)
    run("rclone", "copyto", "y:data/rclone/big", "y:data/rclone/again", env=env)
    run("rclone", "sync", "y:data/rclone", str(tmp_path / "back"), env=env)
    assert (tmp_path / "back" / "again").read_bytes() == CONTENT
    (tree / "deep er" / "é &.txt").unlink()
    run("rclone", "sync", str(tree), "y:data/rclone", env=env)
    assert run("rclone", "lsf", "-R", "--files-only", "y:data/rclone", env=env) == "big\n"
    run("rclone", "delete", "y:data/rclone", env=env)
