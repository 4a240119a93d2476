"""Requests made of anything: each is answered in S3's words, and none is a fault of ours."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkyard.disk import Disks
from forkyard.server.s3.auth import Doorman, Pair
from forkyard.server.s3.face import Face

WORDS = st.sampled_from(
    "append uploads uploadId partNumber list-type delete location versioning prefix delimiter max-keys "
    "marker true 2 1 continuation-token start-after encoding-type url key-marker upload-id-marker max- "
    "uploads max-parts response-expires X-Amz-Algorithm X-Amz-Credential X-Amz-Signature X-Amz-Date "
    "X-Amz-Expires X-Amz-SignedHeaders acl".split()
)
TEXT = st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass"))
ESCAPED = st.binary(max_size=6).map(lambda data: "".join(f"%{byte:02x}" for byte in data).encode())
ANY = st.one_of(WORDS.map(str.encode), TEXT, ESCAPED, st.binary(max_size=8))
PATH = st.lists(st.sampled_from([b"data", b"k", b"..", b"%2e%2e", b"", b"a"]) | ANY, max_size=4).map(
    lambda parts: b"/" + b"/".join(parts).replace(b"?", b"").replace(b"#", b"")
)
QUERY = st.lists(st.tuples(ANY, ANY | st.none()), max_size=4).map(
    lambda pairs: b"&".join(name if value is None else name + b"=" + value for name, value in pairs)
)
NAMES = st.sampled_from(
    b"range if-match if-none-match if-modified-since if-unmodified-since if-range content-md5 content-type "
    b"x-amz-copy-source x-amz-copy-source-range x-amz-copy-source-if-match x-amz-metadata-directive x-amz- "
    b"content-sha256 x-amz-date x-amz-acl x-amz-decoded-content-length x-amz-trailer x-amz-checksum-crc32 "
    b"x-amz-checksum-sha256 x-amz-meta-a x-archil-mode x-archil-uid x-archil-gid content-length x-amz-mp- "
    b"object-size x-amz-expected-bucket-owner content-encoding".split()
)
VALUES = st.one_of(
    st.sampled_from(
        [
            b"bytes=0-1",
            b"*",
            b'"x"',
            b"/data/k",
            b"COPY",
            b"REPLACE",
            b"STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            b"x-amz-checksum-crc32",
            b"Mon, 30 Nov 2026 07:44:42 GMT",
            b"Mon, 99 Nov 99999999 07:44:42 GMT",
            b"20261130T074442Z",
            b"644",
            b"9" * 30,
        ]
    ),
    ANY,
)
AUTHORIZATION = st.one_of(
    st.just(b"key-good"),
    st.just(b"key-good"),
    ANY,
    ANY.map(lambda text: b"AWS4-HMAC-SHA256 " + text),
    st.just(
        b"AWS4-HMAC-SHA256 Credential=a/20261130/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature="
        + b"0" * 64
    ),
)
BODY = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"<Delete><Object><Key>k</Key></Object></Delete>", b"5\r\nhello\r\n0\r\n\r\n", b"<Delete>", b"\xff"]
    ),
)


async def asked(face: Face, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    sent: list[MutableMapping[str, Any]] = []
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return given.pop() if given else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await face(scope, receive, send)
    for _, value in sent[0]["headers"]:
        assert b"\r" not in value and b"\n" not in value and b"\0" not in value
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


@pytest.mark.slow
def test_no_request_is_a_fault_of_ours(tmp_path: Path) -> None:
    def find_key(text: str) -> str | None:
        return "good" if text == "key-good" else None

    with asyncio.Runner() as runner:
        disks = Disks(tmp_path)
        runner.run(disks.create("data"))
        face = Face(disks, Doorman(find_key, lambda access: Pair("secret", None) if access == "a" else None))

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"]),
            PATH,
            QUERY,
            st.lists(st.tuples(NAMES, VALUES), max_size=5),
            AUTHORIZATION,
            BODY,
        )
        def check(
            method: str,
            path: bytes,
            query: bytes,
            headers: list[tuple[bytes, bytes]],
            authorization: bytes,
            body: bytes,
        ) -> None:
            scope = {
                "type": "http",
                "method": method,
                "path": path.decode(errors="replace"),
                "raw_path": path,
                "query_string": query,
                "headers": [(b"host", b"x"), (b"authorization", authorization), *headers],
                "state": {"request_id": "id"},
                "client": ("127.0.0.1", 1),
            }
            status, answer = runner.run(asked(face, scope, body))
            assert status < 500 or status == 501, answer
            if status >= 400 and method != "HEAD":
                assert ElementTree.fromstring(answer).tag == "Error"

        check()
        runner.run(disks.close())
    assert {path.name for path in tmp_path.iterdir()} == {"named-disks"}
