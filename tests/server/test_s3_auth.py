"""Who is let in by the S3 face, and that whoever is not leaves no trace."""

from __future__ import annotations

import base64
import hashlib
import time
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlsplit

import boto3  # type: ignore[import-untyped]
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from forkyard.disk import Disk, KeyPair
from forkyard.server.address import Address
from forkyard.server.pointing import exports
from forkyard.server.running import Running
from forkyard.server.s3 import sigv4
from tests.server.s3parts import Answer, Serving, serving

UNSIGNED = "UNSIGNED-PAYLOAD"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture(scope="module")
def disk(s3: Serving) -> Disk:
    return s3.disk("data")


@pytest.fixture(scope="module")
def pair(s3: Serving, disk: Disk) -> KeyPair:
    return s3.pair(disk)


def stamp(ago: float = 0) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - ago))


def signed(
    pair: KeyPair,
    method: str,
    target: str,
    payload: str = UNSIGNED,
    *,
    ago: float = 0,
    region: str = "us-east-1",
    headers: Mapping[str, str] | None = None,
    host: str,
) -> tuple[dict[str, str], bytes]:
    """The headers of a signed request, and the key that signs its chunks."""
    at = stamp(ago)
    path, _, query = target.partition("?")
    given = {"host": host, "x-amz-date": at, "x-amz-content-sha256": payload, **(headers or {})}
    scope = sigv4.Scope(at[:8], region)
    key = sigv4.signing_key(pair.secret_key, scope)
    asked = sigv4.canonical_request(method, path, parse_qsl(query, keep_blank_values=True), given, payload)
    signature = sigv4.sign(key, sigv4.string_to_sign(at, scope, asked))
    given["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={pair.access_key}/{scope}, SignedHeaders={';'.join(sorted(given))}, "
        f"Signature={signature}"
    )
    return given, key


def ask(s3: Serving, pair: KeyPair, method: str, target: str, body: bytes = b"", **how: Any) -> Answer:
    headers, _ = signed(pair, method, target, host=f"127.0.0.1:{s3.port}", **how)
    return s3.ask(method, target, body, headers)


def keys_of(s3: Serving, disk: Disk) -> list[str]:
    return [info.key for info in s3.run(disk.list()).objects]


@pytest.mark.parametrize("region", ["us-east-1", "aws-us-east-1", "eu-west-1", "gcp-us-central1", "auto"])
def test_whatever_the_client_calls_the_region(s3: Serving, disk: Disk, region: str) -> None:
    pair = s3.pair(disk)
    boto = s3.boto_with(pair.access_key, pair.secret_key, region)
    boto.put_object(Bucket="data", Key="region", Body=region.encode())
    assert boto.get_object(Bucket="data", Key="region")["Body"].read() == region.encode()


def test_an_api_key_is_let_in_as_it_is_and_as_a_pair(s3: Serving, disk: Disk) -> None:
    assert s3.ask("PUT", "/data/k", b"x").status == 200
    assert s3.ask("GET", "/data/k", headers={"Authorization": f"Bearer {s3.key}"}).body == b"x"
    key = s3.call(lambda: s3.server.keys.create("for-s3"))[0]
    secret = s3.call(lambda: s3.server.keys.signing_secret(key.id))
    boto = s3.boto_with(key.id, secret or "")
    assert boto.get_object(Bucket="data", Key="k")["Body"].read() == b"x"
    s3.call(lambda: s3.server.keys.revoke(key.id))
    with pytest.raises(ClientError) as caught:
        boto.get_object(Bucket="data", Key="k")
    assert caught.value.response["Error"]["Code"] == "InvalidAccessKeyId"


@pytest.mark.parametrize(
    ("authorization", "status", "code"),
    [
        ("", 403, "AccessDenied"),
        ("key-", 403, "AccessDenied"),
        ("key-0000000000000000.AAAA", 403, "AccessDenied"),
        ("Bearer nothing", 403, "AccessDenied"),
        ("Basic dXNlcjpwYXNz", 403, "AccessDenied"),
        ("AWS AKIA:c2ln", 400, "InvalidRequest"),
        ("AWS4-HMAC-SHA256", 400, "InvalidRequest"),
        ("AWS4-HMAC-SHA256 garbage", 400, "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 " + "x" * 5000, 400, "AuthorizationHeaderMalformed"),
        ("key-\u00e9\u00ff", 403, "AccessDenied"),
    ],
)
def test_no_credentials_no_entry(s3: Serving, disk: Disk, authorization: str, status: int, code: str) -> None:
    for method, target in (
        ("PUT", "/data/secret"),
        ("GET", "/data/k"),
        ("GET", "/"),
        ("PUT", "/new"),
        ("GET", "/no/k"),
    ):
        headers = {"Authorization": authorization, "x-amz-date": stamp()}
        answer = s3.ask(method, target, b"" if method == "GET" else b"x", headers)
        assert (answer.status, answer.code) == (status, code)
        assert b"Traceback" not in answer.body
    assert "secret" not in keys_of(s3, disk)
    assert s3.ask("HEAD", "/new").status == 404


def test_a_wrong_signature_has_no_effect(s3: Serving, disk: Disk, pair: KeyPair) -> None:
    host = f"127.0.0.1:{s3.port}"
    digest = hashlib.sha256(b"x").hexdigest()
    headers, _ = signed(pair, "PUT", "/data/right", digest, host=host, headers={"x-amz-meta-m": "1"})
    changed: list[tuple[str, str, bytes, dict[str, str], str]] = [
        ("PUT", "/data/wrong", b"x", {}, "SignatureDoesNotMatch"),
        ("DELETE", "/data/right", b"x", {}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right?append=true", b"x", {}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right", b"x", {"x-amz-meta-m": "2"}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right", b"x", {"x-amz-content-sha256": UNSIGNED}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right", b"x", {"x-amz-date": stamp(1)}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right", b"x", {"host": "other"}, "SignatureDoesNotMatch"),
        ("PUT", "/data/right", b"x", {"x-amz-meta-other": "1"}, "AccessDenied"),
        ("PUT", "/data/right", b"x", {"x-archil-mode": "777"}, "AccessDenied"),
        ("PUT", "/data/right", b"y", {}, "XAmzContentSHA256Mismatch"),
    ]
    for method, target, body, other, code in changed:
        answer = s3.ask(method, target, body, {**headers, **other})
        assert answer.code == code, (method, target, other)
    assert not {"wrong", "right"} & set(keys_of(s3, disk))
    wrong_secret = KeyPair(pair.disk_id, pair.access_key, pair.secret_key[:-1] + "~")
    assert ask(s3, wrong_secret, "PUT", "/data/right", b"x").code == "SignatureDoesNotMatch"
    unknown = KeyPair(pair.disk_id, "FKNOBODY", pair.secret_key)
    assert ask(s3, unknown, "PUT", "/data/right", b"x").code == "InvalidAccessKeyId"
    assert s3.ask("PUT", "/data/right", b"x", headers).status == 200


def test_a_pair_opens_its_own_disk_alone(s3: Serving, pair: KeyPair) -> None:
    s3.disk("other")
    s3.ask("PUT", "/other/k", b"x")
    for method, target in (("GET", "/other/k"), ("PUT", "/other/k"), ("DELETE", "/other/k"), ("GET", "/other")):
        answer = ask(s3, pair, method, target)
        assert (answer.status, answer.code) == (403, "AccessDenied")
    assert s3.ask("GET", "/other/k").body == b"x"


def test_clocks_may_differ_by_a_quarter_of_an_hour(s3: Serving, pair: KeyPair) -> None:
    for ago in (-14 * 60, 14 * 60):
        assert ask(s3, pair, "GET", "/data", ago=ago).status == 200
    for ago in (-16 * 60, 16 * 60, 400 * 86400):
        answer = ask(s3, pair, "PUT", "/data/late", b"x", ago=ago)
        assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
    assert s3.ask("HEAD", "/data/late").status == 404


def fetched(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except HTTPError as err:
        with err:
            return err.code, err.read()


def test_a_presigned_url_does_one_thing_for_a_while(s3: Serving, disk: Disk) -> None:
    boto = s3.boto(disk, signature_version="s3v4")
    where = {"Bucket": "data", "Key": "a b/é+&"}
    put = boto.generate_presigned_url("put_object", where, ExpiresIn=60)
    assert fetched(put, "PUT", b"hello")[0] == 200
    get = boto.generate_presigned_url("get_object", {**where, "ResponseContentType": "text/x"}, ExpiresIn=60)
    assert fetched(get) == (200, b"hello")
    assert fetched(get) == (200, b"hello")
    assert fetched(get, "DELETE")[0] == 403
    assert fetched(get.replace("text%2Fx", "text%2Fy"))[0] == 403
    assert fetched(get.replace("X-Amz-Expires=60", "X-Amz-Expires=600"))[0] == 403
    assert fetched(get + "&versionId=1")[0] == 403
    assert fetched(put.replace("a%20b", "a%20c"), "PUT", b"x")[0] == 403
    assert fetched(put, "PUT", b"x", **{"x-amz-meta-m": "1"})[0] == 403
    assert fetched(get, Authorization=s3.key)[0] == 400
    typed = boto.generate_presigned_url("put_object", {**where, "ContentType": "text/x"}, ExpiresIn=60)
    assert fetched(typed, "PUT", b"x", **{"Content-Type": "text/y"})[0] == 403
    assert fetched(typed, "PUT", b"hello", **{"Content-Type": "text/x"})[0] == 200
    assert fetched(get) == (200, b"hello")


def test_a_url_presigned_in_the_region_that_is_printed_opens_and_one_of_version_2_says_what_to_do(
    s3: Serving, disk: Disk
) -> None:
    assert s3.ask("PUT", "/data/k", b"hello").status == 200
    pointed = dict(
        line.removeprefix("export ").split("=", 1)
        for line in exports(s3.server.home, Running(Address("127.0.0.1", s3.port)), by_hosts=False)
    )
    assert pointed["AWS_DEFAULT_REGION"] == pointed["AWS_REGION"]
    pair = s3.pair(disk)
    for region, answer in ((pointed["AWS_DEFAULT_REGION"], (200, b"hello")), ("us-east-1", (400, None))):
        boto = boto3.client(
            "s3",
            endpoint_url=s3.url,
            region_name=region,
            aws_access_key_id=pair.access_key,
            aws_secret_access_key=pair.secret_key,
        )
        status, body = fetched(boto.generate_presigned_url("get_object", {"Bucket": "data", "Key": "k"}, ExpiresIn=60))
        assert (status, body if answer[1] else None) == answer
    assert b"s3v4" in body and b"AWS_DEFAULT_REGION=us-east-2" in body


def presigned(s3: Serving, pair: KeyPair, method: str, path: str, *, ago: float, expires: str) -> str:
    at = stamp(ago)
    scope = sigv4.Scope(at[:8], "us-east-1")
    query = [
        ("X-Amz-Algorithm", sigv4.ALGORITHM),
        ("X-Amz-Credential", f"{pair.access_key}/{scope}"),
        ("X-Amz-Date", at),
        ("X-Amz-Expires", expires),
        ("X-Amz-SignedHeaders", "host"),
    ]
    asked = sigv4.canonical_request(method, path, query, {"host": f"127.0.0.1:{s3.port}"}, UNSIGNED)
    signature = sigv4.sign(sigv4.signing_key(pair.secret_key, scope), sigv4.string_to_sign(at, scope, asked))
    return f"{path}?{sigv4.canonical_query(query)}&X-Amz-Signature={signature}"


@pytest.mark.parametrize(
    ("ago", "expires", "status", "code"),
    [
        (10, "60", 200, ""),
        (61, "60", 403, "AccessDenied"),
        (86_400 * 8, "604800", 403, "AccessDenied"),
        (-16 * 60, "604800", 403, "AccessDenied"),
        (0, "604801", 400, "AuthorizationQueryParametersError"),
        (0, "0", 400, "AuthorizationQueryParametersError"),
        (0, "-1", 400, "AuthorizationQueryParametersError"),
        (0, "1e9", 400, "AuthorizationQueryParametersError"),
        (0, "٣", 400, "AuthorizationQueryParametersError"),
    ],
)
def test_a_presigned_url_has_its_time(
    s3: Serving, disk: Disk, pair: KeyPair, ago: float, expires: str, status: int, code: str
) -> None:
    headers = {"Authorization": ""}
    answer = s3.ask("PUT", presigned(s3, pair, "PUT", "/data/timed", ago=ago, expires=expires), b"x", headers)
    assert answer.status == status
    assert not code or answer.code == code
    assert s3.ask("DELETE", "/data/timed").status == 204


def test_half_a_presigned_url_opens_nothing(s3: Serving, pair: KeyPair) -> None:
    whole = presigned(s3, pair, "PUT", "/data/half", ago=0, expires="60")
    path, _, query = whole.partition("?")
    parameters = query.split("&")
    for left_out in range(len(parameters)):
        target = path + "?" + "&".join(parameters[:left_out] + parameters[left_out + 1 :])
        assert s3.ask("PUT", target, b"x", {"Authorization": ""}).status in (400, 403)
    for twice in parameters:
        assert s3.ask("PUT", f"{whole}&{twice}", b"x", {"Authorization": ""}).status in (400, 403)
    assert s3.ask("HEAD", "/data/half").status == 404


def chunks(body: bytes, size: int, chain: Any = None, trailer: tuple[str, str] | None = None) -> bytes:
    """A body in aws-chunked form; `chain` makes the signatures."""
    out = b""
    for start in [*range(0, len(body), size), len(body)]:
        piece = body[start : start + size]
        mark = f";chunk-signature={chain('PAYLOAD', sigv4.EMPTY_SHA256, digest(piece))}" if chain else ""
        out += f"{len(piece):x}{mark}\r\n".encode() + piece + (b"\r\n" if piece else b"")
    if trailer:
        out += f"{trailer[0]}:{trailer[1]}\r\n".encode()
        if chain:
            text = f"{trailer[0]}:{trailer[1]}\n".encode()
            out += f"x-amz-trailer-signature:{chain('TRAILER', digest(text))}\r\n".encode()
    return out + b"\r\n"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def chain_of(headers: Mapping[str, str], key: bytes) -> Any:
    last = headers["Authorization"].rpartition("=")[2]
    at = headers["x-amz-date"]

    def follow(kind: str, *digests: str) -> str:
        nonlocal last
        scope = sigv4.Scope(at[:8], "us-east-1")
        last = sigv4.sign(key, "\n".join((f"AWS4-HMAC-SHA256-{kind}", at, str(scope), last, *digests)))
        return last

    return follow


def crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


BODY = bytes(range(256)) * 700


@pytest.mark.parametrize("with_trailer", [False, True])
def test_signed_chunks(s3: Serving, pair: KeyPair, with_trailer: bool) -> None:
    payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if with_trailer else "")
    more = {"x-amz-decoded-content-length": str(len(BODY)), "content-encoding": "aws-chunked"}
    trailer = ("x-amz-checksum-crc32", crc32(BODY)) if with_trailer else None
    if trailer:
        more["x-amz-trailer"] = trailer[0]
    headers, key = signed(pair, "PUT", "/data/c", payload, headers=more, host=f"127.0.0.1:{s3.port}")

    def sent(body: bytes) -> Answer:
        s3.ask("DELETE", "/data/c")
        return s3.ask("PUT", "/data/c", body, headers)

    right = chunks(BODY, 65536, chain_of(headers, key), trailer)
    answer = sent(right)
    assert answer.status == 200, answer.body
    stored = s3.ask("GET", "/data/c")
    assert stored.body == BODY and "content-encoding" not in stored.headers
    wrong = [
        right[:place] + bytes((right[place] ^ 1,)) + right[place + 1 :] for place in (100, 70_000, len(right) - 40)
    ]
    wrong += [right[:-50], right + b"x", right + right, chunks(BODY, 65536, None, trailer)]
    if trailer:
        lying = (trailer[0], crc32(b"other"))
        wrong += [chunks(BODY, 65536, chain_of(headers, key), lying), chunks(BODY, 65536, chain_of(headers, key))]
    for body in wrong:
        answer = sent(body)
        assert answer.status in (400, 403)
        assert s3.ask("HEAD", "/data/c").status == 404


def test_unsigned_chunks_with_a_trailer(s3: Serving, pair: KeyPair) -> None:
    more = {"x-amz-decoded-content-length": str(len(BODY)), "x-amz-trailer": "x-amz-checksum-crc32"}
    how = {"headers": more, "host": f"127.0.0.1:{s3.port}"}
    headers, _ = signed(pair, "PUT", "/data/u", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", **how)  # type: ignore[arg-type]
    right = chunks(BODY, 9000, None, ("x-amz-checksum-crc32", crc32(BODY)))
    for body, status, code in (
        (chunks(BODY, 9000, None, ("x-amz-checksum-crc32", crc32(b"no"))), 400, "BadDigest"),
        (chunks(BODY, 9000, None, ("x-amz-checksum-crc32", "!")), 400, "InvalidDigest"),
        (chunks(BODY, 9000, None, ("x-amz-checksum-sha1", crc32(BODY))), 400, "MalformedTrailerError"),
        (chunks(BODY, 9000), 400, "MalformedTrailerError"),
        (right.replace(b"\r\n\r\n", b"\r\nx-amz-meta-m:1\r\n\r\n"), 400, "MalformedTrailerError"),
        (chunks(BODY[1:], 9000, None, ("x-amz-checksum-crc32", crc32(BODY[1:]))), 400, "IncompleteBody"),
        (chunks(BODY + b"x", 9000, None, ("x-amz-checksum-crc32", crc32(BODY + b"x"))), 400, "IncompleteBody"),
        (b"fffffffffff\r\n" + BODY, 400, "IncompleteBody"),
        (b"-1\r\n" + BODY, 400, "IncompleteBody"),
        (b"x" * 100_000, 400, "IncompleteBody"),
        (b"", 400, "IncompleteBody"),
    ):
        answer = s3.ask("PUT", "/data/u", body, headers)
        assert (answer.status, answer.code) == (status, code)
        assert s3.ask("HEAD", "/data/u").status == 404
    assert s3.ask("PUT", "/data/u", right, headers).headers["x-amz-checksum-crc32"] == crc32(BODY)
    assert s3.ask("GET", "/data/u").body == BODY


def test_an_api_key_sends_chunks_too_but_signs_none(s3: Serving) -> None:
    more = {
        "x-amz-decoded-content-length": "5",
        "x-amz-trailer": "x-amz-checksum-crc32",
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    }
    body = chunks(b"hello", 3, None, ("x-amz-checksum-crc32", crc32(b"hello")))
    assert s3.ask("PUT", "/data/a", body, more).status == 200
    more["x-amz-content-sha256"] = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    assert s3.ask("PUT", "/data/b", body, more).code == "InvalidRequest"
    more["x-amz-content-sha256"] = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
    assert s3.ask("PUT", "/data/b", body, more).code == "NotImplemented"
    more["x-amz-content-sha256"] = "0" * 63
    assert s3.ask("PUT", "/data/b", body, more).code == "InvalidArgument"
    del more["x-amz-decoded-content-length"]
    more["x-amz-content-sha256"] = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert s3.ask("PUT", "/data/b", body, more).code == "MissingContentLength"
    assert s3.ask("HEAD", "/data/b").status == 404


def test_only_allowed_addresses_reach_a_disk(s3: Serving) -> None:
    fenced = s3.disk("fenced")
    assert s3.ask("PUT", "/fenced/k", b"x").status == 200
    s3.call(lambda: s3.server.disks.access.allow(fenced.info.id, ["10.0.0.0/8"]))
    assert s3.ask("GET", "/fenced/k").code == "AccessDenied"
    assert s3.ask("PUT", "/data/k", headers={"x-amz-copy-source": "/fenced/k"}).code == "AccessDenied"
    s3.call(lambda: s3.server.disks.access.allow(fenced.info.id, ["10.0.0.0/8", "127.0.0.1"]))
    assert s3.ask("GET", "/fenced/k").body == b"x"


def test_urls_boto_signs_are_those_s3_would_take(s3: Serving, disk: Disk) -> None:
    url = s3.boto(disk, signature_version="s3v4").generate_presigned_url("get_object", {"Bucket": "data", "Key": "x"})
    assert urlsplit(url).path == "/data/x"
