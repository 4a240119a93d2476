"""Signature version 4, beside the examples S3's documentation prints."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from urllib.parse import parse_qsl

import pytest

from forkyard.server.s3.chunked import Chain, Form, decoded
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.sigv4 import (
    EMPTY_SHA256,
    Scope,
    canonical_request,
    claim_of_header,
    claim_of_query,
    parse_time,
    sign,
    signing_key,
    string_to_sign,
)

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TIME = "20130524T000000Z"
SCOPE = Scope("20130524", "us-east-1")
KEY = signing_key(SECRET, SCOPE)
HOST = "examplebucket.s3.amazonaws.com"
CRC32C = "sOO8/Q=="


def signature(method: str, path: str, query: str, headers: dict[str, str], payload: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    asked = canonical_request(method, path, pairs, {"host": HOST, **headers}, payload)
    return sign(KEY, string_to_sign(TIME, SCOPE, asked))


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "body", "right"),
    [
        (
            "GET",
            "/test.txt",
            "",
            {"range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            "",
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", "/", "lifecycle", {}, b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            "GET",
            "/",
            "max-keys=2&prefix=J",
            {},
            b"",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_a_signature_in_headers_is_the_documented_one(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes, right: str
) -> None:
    digest = hashlib.sha256(body).hexdigest()
    headers = {**headers, "x-amz-content-sha256": digest, "x-amz-date": TIME}
    assert signature(method, path, query, headers, digest) == right


def test_a_signature_in_a_url_is_the_documented_one() -> None:
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3"
        "%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    claim = claim_of_query(parse_qsl(query))
    assert (claim.access_key, claim.expires, claim.signed_headers) == ("AKIAIOSFODNN7EXAMPLE", 86400, ("host",))
    assert signature("GET", "/test.txt", query, {}, "UNSIGNED-PAYLOAD") == claim.signature


async def pieces_of(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def whole(body: bytes, form: Form, size: int = 1 << 16) -> bytes:
    return b"".join([piece async for piece in decoded(pieces_of(body, size), form)])


def documented(signatures: Sequence[str], end: bytes) -> bytes:
    first, second, last = signatures
    return b"".join(
        (
            f"10000;chunk-signature={first}\r\n".encode() + b"a" * 65536 + b"\r\n",
            f"400;chunk-signature={second}\r\n".encode() + b"a" * 1024 + b"\r\n",
            f"0;chunk-signature={last}\r\n".encode() + end,
        )
    )


SIGNED = (
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    documented(
        (
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ),
        b"\r\n",
    ),
    frozenset[str](),
)
WITH_TRAILER = (
    "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    documented(
        (
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        ),
        f"x-amz-checksum-crc32c:{CRC32C}\r\nx-amz-trailer-signature:"
        "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n".encode(),
    ),
    frozenset({"x-amz-checksum-crc32c"}),
)


def form_of(seed: str, announced: frozenset[str], size: int = 66560) -> Form:
    return Form(size, Chain(KEY, TIME, SCOPE, seed), announced)


@pytest.mark.parametrize(("seed", "body", "announced"), [SIGNED, WITH_TRAILER])
@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
async def test_the_documented_signed_chunks_are_read(
    seed: str, body: bytes, announced: frozenset[str], size: int
) -> None:
    form = form_of(seed, announced)
    assert await whole(body, form, size) == b"a" * 66560
    assert form.trailers == ({"x-amz-checksum-crc32c": CRC32C} if announced else {})


@pytest.mark.parametrize(("seed", "body", "announced"), [SIGNED, WITH_TRAILER])
async def test_no_signed_body_that_was_changed_comes_to_its_end(
    seed: str, body: bytes, announced: frozenset[str]
) -> None:
    places = [*range(0, 90), 50_000, *range(65_600, 65_800), *range(len(body) - 250, len(body) - 4)]
    for place in places:
        changed = bytearray(body)
        changed[place] ^= 1
        try:
            got = await whole(bytes(changed), form_of(seed, announced))
        except S3Error:
            continue
        assert bytes(changed).lower() == body.lower(), place
        assert got == b"a" * 66560


@pytest.mark.parametrize(("seed", "body", "announced"), [SIGNED, WITH_TRAILER])
async def test_no_signed_body_that_was_cut_comes_to_its_end(seed: str, body: bytes, announced: frozenset[str]) -> None:
    for end in (0, 1, 86, 87, 60_000, 65_623, 65_625, 66_800, len(body) - 90, len(body) - 10 - 80 * bool(announced)):
        with pytest.raises(S3Error):
            await whole(body[:end], form_of(seed, announced))


async def test_chunks_cannot_change_places_or_be_left_out() -> None:
    seed, body, announced = SIGNED
    first, second = body[: 87 + 65536 + 2], body[87 + 65536 + 2 : -88]
    last = body[len(first) + len(second) :]
    for wrong in (second + first + last, first + last, second + last, last, first + first + last):
        with pytest.raises(S3Error):
            await whole(wrong, form_of(seed, announced))


@pytest.mark.parametrize(
    "header",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA512 Credential=a/20130524/us-east-1/s3/aws4_request",
        "AWS4-HMAC-SHA256 Credential=a",
        "AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/s3/aws4_request, SignedHeaders=host",
        "AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/s3/aws4_request, SignedHeaders=date, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/20130525/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=a/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, SignedHeaders=host, "
        "Signature=" + "0" * 64,
    ],
)
def test_a_malformed_authorization_header_is_refused(header: str) -> None:
    with pytest.raises(S3Error) as caught:
        claim_of_header(header, TIME)
    assert caught.value.status == 400


@pytest.mark.parametrize("text", ["", "20130524", "2013-05-24T00:00:00Z", "20130524T250000Z", "20130524T000000Z\n"])
def test_a_time_is_written_in_one_way(text: str) -> None:
    with pytest.raises(S3Error):
        parse_time(text)


def test_the_digest_of_nothing_is_known() -> None:
    assert hashlib.sha256().hexdigest() == EMPTY_SHA256
