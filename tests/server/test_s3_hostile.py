"""What no honest client sends to the S3 face: a documented error, nothing written, nothing of the host shown."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkyard.disk import Disk
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.request import Request
from tests.server.s3parts import Serving, serving


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def s3(home: Path) -> Iterator[Serving]:
    with serving(home) as found:
        yield found


@pytest.fixture(scope="module")
def disk(s3: Serving) -> Disk:
    return s3.disk("data")


def raw(s3: Serving, data: bytes, *, close: bool = False) -> bytes:
    """What a socket gets for these bytes, until the server closes; nothing when we close first."""
    with socket.create_connection(("127.0.0.1", s3.port), timeout=30) as sock:
        sock.sendall(data)
        if close:
            return b""
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def head(s3: Serving, method: str, target: str, *more: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: {s3.key}", "Connection: close", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def files(home: Path) -> set[str]:
    return {str(path) for path in home.rglob("*") if "named-disks" not in str(path)}


BAD_KEYS = [
    "..",
    "../x",
    "a/../b",
    "a/..",
    "./a",
    "a/./b",
    "/etc/passwd",
    "a//b",
    "a/b//",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "..%2Fx",
    "%2Fetc%2Fpasswd",
    "a%00b",
    "a%2f%2e%2e%2f%2e%2e%2fb",
]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_that_is_no_path_below_the_disk_is_refused(s3: Serving, disk: Disk, home: Path, key: str) -> None:
    before, target = files(home), f"/data/{key}"
    for method, query in (("PUT", ""), ("PUT", "?append=true"), ("GET", ""), ("DELETE", ""), ("POST", "?uploads")):
        answer = raw(s3, head(s3, method, target + query, "Content-Length: 1") + b"x")
        assert answer.startswith(b"HTTP/1.1 400 "), (method, answer)
        assert b"<Code>InvalidKey</Code>" in answer and b"Traceback" not in answer
    assert raw(s3, head(s3, "HEAD", target)).startswith(b"HTTP/1.1 400 ")
    source = raw(s3, head(s3, "PUT", "/data/copy", f"x-amz-copy-source: /data/{key}", "Content-Length: 0"))
    assert b"<Code>InvalidKey</Code>" in source
    assert files(home) == before
    assert s3.run(disk.list()).objects == ()


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("%ff%fe", "InvalidURI"),
        ("%ed%a0%80", "InvalidURI"),
        ("k" * 1025, "KeyTooLongError"),
        ("%F0%9F%98%80" * 257, "KeyTooLongError"),
        ("s" * 256, "KeyTooLongError"),
        ("k?prefix=%ff", "InvalidURI"),
    ],
)
def test_a_key_that_is_no_text_or_too_long_is_refused(s3: Serving, disk: Disk, key: str, code: str) -> None:
    answer = s3.ask("PUT", f"/data/{key}", b"x")
    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "%",
        "%zz",
        "a%2Fb",
        "a%3Fb%23c",
        "é",
        "e\u0301",
        "\u202e\u200b",
        "😀/😀",
        "a\r\nb",
        "\x7f\x1b[31m",
        "\\..\\x",
        "~",
    ],
)
def test_an_odd_key_is_kept_as_it_is(s3: Serving, disk: Disk, key: str) -> None:
    from urllib.parse import quote, unquote

    target = key if key.isascii() and key.isprintable() and " " not in key else quote(key)
    meant = unquote(target)
    assert s3.ask("PUT", f"/data/{target}", key.encode()).status == 200
    assert s3.ask("GET", f"/data/{quote(meant, safe='')}").body == key.encode()
    assert [info.key for info in s3.run(disk.list()).objects] == [meant]
    assert s3.ask("DELETE", f"/data/{quote(meant)}").status == 204


@pytest.mark.parametrize(
    "bucket", ["..", "%2e%2e", ".", "dsk-0000000000000000", "data%2f..", "data.nobranch", "*", "%00"]
)
def test_a_disk_of_no_such_name_is_not_there(s3: Serving, disk: Disk, bucket: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = s3.ask(method, f"/{bucket}/k", b"")
        assert answer.code in ("NoSuchBucket", "InvalidBucketName", "InvalidKey", "MethodNotAllowed"), bucket


def test_half_a_body_is_no_object(s3: Serving, disk: Disk) -> None:
    for target in ("/data/half", "/data/half?append=true"):
        raw(s3, head(s3, "PUT", target, "Content-Length: 1000000") + b"x" * 70_000, close=True)
        raw(s3, head(s3, "PUT", target, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n", close=True)
        raw(s3, head(s3, "PUT", target, "Transfer-Encoding: chunked") + b"5\r\nhello\r\nzz\r\n")
    assert s3.ask("PUT", "/data/whole", b"x").status == 200
    assert [info.key for info in s3.run(disk.list()).objects] == ["whole"]
    assert s3.ask("DELETE", "/data/whole").status == 204


def test_a_body_without_a_length_is_taken(s3: Serving, disk: Disk) -> None:
    answer = raw(s3, head(s3, "PUT", "/data/k", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert s3.ask("GET", "/data/k").body == b"hello"
    assert s3.ask("DELETE", "/data/k").status == 204


@pytest.mark.parametrize(
    ("target", "length", "code"),
    [
        ("/data/k", str((5 << 30) + 1), "EntityTooLarge"),
        ("/data/k", "9" * 18, "EntityTooLarge"),
        ("/data/k?append=true", str((1 << 20) + 1), "EntityTooLarge"),
        ("/data/k?uploadId=x&partNumber=1", str((5 << 30) + 1), "EntityTooLarge"),
    ],
)
def test_a_body_too_large_is_refused_before_it_comes(
    s3: Serving, disk: Disk, target: str, length: str, code: str
) -> None:
    answer = raw(s3, head(s3, "PUT", target, f"Content-Length: {length}", "Expect: 100-continue"))
    assert b"100 Continue" not in answer
    assert f"<Code>{code}</Code>".encode() in answer


@pytest.mark.parametrize("number", ["0", "10001", "-1", "x", "", "1e3", "٣", "9" * 30])
def test_numbers_have_bounds(s3: Serving, disk: Disk, number: str) -> None:
    from urllib.parse import quote

    for target in (f"/data/k?uploadId=x&partNumber={quote(number)}",):
        assert s3.ask("PUT", target, b"").code == "InvalidArgument"
    if number not in ("0", "10001"):
        assert s3.ask("GET", f"/data?list-type=2&max-keys={quote(number)}").code == "InvalidArgument"


@pytest.mark.parametrize(
    "query",
    ["continuation-token=!", "continuation-token=%00", "encoding-type=x", "delimiter=%2F%2F", "&".join(["a=b"] * 300)],
)
def test_parameters_that_are_none(s3: Serving, disk: Disk, query: str) -> None:
    answer = s3.ask("GET", f"/data?list-type=2&{query}")
    assert (answer.status, answer.code) in ((400, "InvalidArgument"), (400, "InvalidURI"))


def test_what_a_header_holds_stays_in_it(s3: Serving, disk: Disk) -> None:
    answer = raw(s3, head(s3, "PUT", "/data/k", "x-amz-meta-a: b\x01c", "Content-Length: 0"))
    assert b" 400 " in answer.split(b"\r\n")[0]
    for value in ("a%0d%0aSet-Cookie:b", "a%00b", "%1b"):
        s3.ask("PUT", "/data/k", b"x")
        assert s3.ask("GET", f"/data/k?response-content-type={value}").code == "InvalidArgument"
    large = {"x-amz-meta-a": "b" * 2100}
    assert s3.ask("PUT", "/data/other", b"", large).code == "MetadataTooLarge"
    accents = {"x-amz-meta-a": "é€".encode()}
    assert s3.ask("PUT", "/data/k", b"x", accents).status == 200  # type: ignore[arg-type]
    assert s3.ask("GET", "/data/k").headers["x-amz-meta-a"].encode("latin-1").decode() == "é€"
    broken = {"x-amz-meta-a": b"\xff\xfe"}
    assert s3.ask("PUT", "/data/k", b"y", broken).code == "InvalidArgument"  # type: ignore[arg-type]
    assert s3.ask("PUT", "/data/k", b"y", {"x-amz-copy-source": b"\xff\xfe/k"}).code == "InvalidURI"  # type: ignore[dict-item]
    assert s3.ask("GET", "/data/k").body == b"x"
    s3.ask("DELETE", "/data/k")


@pytest.mark.parametrize("source", ["", "/", "data", "/data", "/data/", "data/k?versionId=1", "//k", "/nowhere/k"])
def test_sources_of_copies_that_are_none(s3: Serving, disk: Disk, source: str) -> None:
    answer = s3.ask("PUT", "/data/copy", headers={"x-amz-copy-source": source})
    assert answer.status in (400, 404, 501)
    assert answer.code
    assert s3.ask("HEAD", "/data/copy").status == 404


@pytest.mark.parametrize("body", [b"", b"<", b"<Delete/>", b"<Delete><Object/></Delete>", b"\xff\xfe<\x00", b"{}"])
def test_documents_that_are_none(s3: Serving, disk: Disk, body: bytes) -> None:
    assert s3.ask("POST", "/data?delete", body).code == "MalformedXML"
    assert s3.ask("POST", "/data/k?uploadId=x", body).code == "MalformedXML"


def test_what_a_command_left_on_a_disk_leads_nowhere(s3: Serving, disk: Disk, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    top = disk.directory()
    (top / "link").symlink_to(secret)
    (top / "dir").symlink_to(tmp_path)
    (top / "loop").symlink_to("loop")
    os.mkfifo(top / "fifo")
    (top / os.fsdecode(b"\xff")).write_text("no text")
    (top / "plain").write_text("fine")
    for key in ("link", "dir/secret", "loop", "fifo"):
        assert b"of the host" not in s3.ask("GET", f"/data/{key}").body
        assert s3.ask("GET", f"/data/{key}").status in (404, 409)
        copy = s3.ask("PUT", "/data/copy", headers={"x-amz-copy-source": f"/data/{key}"})
        assert copy.status in (404, 409)
    for key in ("dir/secret", "dir/new"):
        assert s3.ask("PUT", f"/data/{key}", b"x").status in (404, 409)
        assert s3.ask("PUT", f"/data/{key}?append=true", b"x").status in (404, 409)
    assert s3.ask("DELETE", "/data/dir/secret").status in (204, 404, 409)
    assert secret.read_text() == "of the host"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]
    listed = s3.ask("GET", "/data?list-type=2").body
    assert b"<Key>plain</Key>" in listed and b"of the host" not in listed
    for key in ("link", "dir", "loop", "fifo", "plain"):
        (top / key).unlink(missing_ok=True)
    (top / os.fsdecode(b"\xff")).unlink()


async def forever() -> Any:
    await asyncio.Event().wait()


async def test_a_body_that_falls_asleep_is_given_up() -> None:
    request = Request("PUT", "/b/k", (), {}, "b", "k", forever, patience=0.05)
    with pytest.raises(S3Error) as caught:
        async for _ in request.pieces():
            pass
    assert caught.value.code == "RequestTimeout"


async def test_a_body_that_dawdles_is_given_up() -> None:
    async def dawdle() -> Any:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    request = Request("PUT", "/b/k", (), {}, "b", "k", dawdle, patience=0.1)
    with pytest.raises(S3Error) as caught:
        async for _ in request.pieces():
            pass
    assert caught.value.code == "RequestTimeout"


def test_two_requests_on_one_connection_after_a_refusal(s3: Serving, disk: Disk) -> None:
    one = head(s3, "PUT", "/data/..", "Content-Length: 100000").replace(b"Connection: close\r\n", b"") + b"x" * 100_000
    answer = raw(s3, one + head(s3, "GET", "/data?list-type=2"))
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"<ListBucketResult" in answer
