"""The S3 face to boto3: every operation a disk has, and what each refuses."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from forkyard.disk import Disk
from tests.server.s3parts import Serving, serving

MIB = 1 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture
def disk(s3: Serving, request: pytest.FixtureRequest) -> Disk:
    return s3.disk(f"d{zlib.crc32(request.node.nodeid.encode())}")


@pytest.fixture
def bucket(disk: Disk) -> str:
    return disk.info.name


@pytest.fixture
def boto(s3: Serving, disk: Disk) -> Any:
    return s3.boto(disk)


def refused(call: Any, **arguments: Any) -> tuple[int, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def put(boto: Any, bucket: str, *keys: str) -> None:
    for key in keys:
        boto.put_object(Bucket=bucket, Key=key, Body=key.encode())


def test_an_object_comes_back_with_all_that_was_said_of_it(boto: Any, bucket: str) -> None:
    said = {
        "ContentType": "text/plain; charset=utf-8",
        "CacheControl": "max-age=5",
        "ContentDisposition": 'attachment; filename="a"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "en",
        "Metadata": {"one": "1", "two": "zwei und drei"},
    }
    boto.put_object(Bucket=bucket, Key="a/b c", Body=b"hello", **said)
    for answer in (boto.get_object(Bucket=bucket, Key="a/b c"), boto.head_object(Bucket=bucket, Key="a/b c")):
        assert {name: answer[name] for name in said} == said
        assert (answer["ContentLength"], answer["ETag"]) == (5, f'"{hashlib.md5(b"hello").hexdigest()}"')
        assert abs(answer["LastModified"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert boto.get_object(Bucket=bucket, Key="a/b c")["Body"].read() == b"hello"


def test_a_disk_is_named_by_its_id_too(boto: Any, bucket: str, disk: Disk) -> None:
    put(boto, bucket, "k")
    assert boto.get_object(Bucket=disk.info.id, Key="k")["Body"].read() == b"k"


def test_what_is_not_there_is_told_in_s3s_words(boto: Any, bucket: str) -> None:
    assert refused(boto.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
    assert refused(boto.head_object, Bucket=bucket, Key="k") == (404, "404")
    assert refused(boto.get_object, Bucket="nowhere", Key="k") == (404, "NoSuchBucket")
    assert refused(boto.head_bucket, Bucket="nowhere") == (404, "404")
    assert boto.delete_object(Bucket=bucket, Key="k")["ResponseMetadata"]["HTTPStatusCode"] == 204
    for call in (boto.list_parts, boto.abort_multipart_upload):
        assert refused(call, Bucket=bucket, Key="k", UploadId="no") == (404, "NoSuchUpload")
    assert refused(boto.upload_part, Bucket=bucket, Key="k", UploadId="no", PartNumber=1) == (404, "NoSuchUpload")


def test_a_deleted_object_is_gone(boto: Any, bucket: str) -> None:
    put(boto, bucket, "k")
    boto.delete_object(Bucket=bucket, Key="k")
    assert refused(boto.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [("bytes=0-3", 0, 4), ("bytes=3-", 3, 10), ("bytes=-4", 6, 10), ("bytes=2-99", 2, 10), ("bytes=-99", 0, 10)],
)
def test_ranges(boto: Any, bucket: str, text: str, start: int, stop: int) -> None:
    boto.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    answer = boto.get_object(Bucket=bucket, Key="k", Range=text)
    assert answer["Body"].read() == b"0123456789"[start:stop]
    for each in (answer, boto.head_object(Bucket=bucket, Key="k", Range=text)):
        assert each["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert (each["ContentRange"], each["ContentLength"]) == (f"bytes {start}-{stop - 1}/10", stop - start)


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_a_range_beyond_the_end_is_refused(s3: Serving, boto: Any, bucket: str, text: str) -> None:
    boto.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    assert refused(boto.get_object, Bucket=bucket, Key="k", Range=text) == (416, "InvalidRange")
    assert s3.ask("GET", f"/{bucket}/k", headers={"Range": text}).headers["content-range"] == "bytes */10"
    assert s3.ask("HEAD", f"/{bucket}/k", headers={"Range": text}).status == 416


@pytest.mark.parametrize("text", ["bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,4-5", "bytes=a-b", "bytes=٣-٤"])
def test_what_is_no_single_range_is_answered_whole(s3: Serving, boto: Any, bucket: str, text: str) -> None:
    boto.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    answer = s3.ask("GET", f"/{bucket}/k", headers={"Range": text.encode()})  # type: ignore[dict-item]
    assert (answer.status, answer.body) == (200, b"0123456789")


def test_conditions_of_reading(boto: Any, bucket: str) -> None:
    boto.put_object(Bucket=bucket, Key="k", Body=b"hello")
    info = boto.head_object(Bucket=bucket, Key="k")
    tag, at = info["ETag"], info["LastModified"]
    before, after = at - timedelta(hours=1), at + timedelta(seconds=1)
    where = {"Bucket": bucket, "Key": "k"}
    for read in (boto.get_object, boto.head_object):
        for fine in (
            {"IfMatch": tag},
            {"IfMatch": "*"},
            {"IfMatch": f'"no", {tag}'},
            {"IfNoneMatch": '"no"'},
            {"IfModifiedSince": before},
            {"IfUnmodifiedSince": at},
            {"IfMatch": tag, "IfUnmodifiedSince": before},
            {"IfNoneMatch": '"no"', "IfModifiedSince": after},
        ):
            assert read(**where, **fine)["ContentLength"] == 5
        for same in ({"IfNoneMatch": tag}, {"IfNoneMatch": "*"}, {"IfModifiedSince": at}, {"IfModifiedSince": after}):
            assert refused(read, **where, **same)[0] == 304
        for other in ({"IfMatch": '"no"'}, {"IfUnmodifiedSince": before}):
            assert refused(read, **where, **other)[0] == 412


def test_if_range_gives_the_whole_of_what_has_changed(s3: Serving, boto: Any, bucket: str) -> None:
    tag = boto.put_object(Bucket=bucket, Key="k", Body=b"0123456789")["ETag"]
    headers = {"Range": "bytes=2-3"}
    assert s3.ask("GET", f"/{bucket}/k", headers={**headers, "If-Range": tag}).body == b"23"
    assert s3.ask("GET", f"/{bucket}/k", headers={**headers, "If-Range": '"no"'}).body == b"0123456789"


def test_conditions_of_writing(boto: Any, bucket: str) -> None:
    where = {"Bucket": bucket, "Key": "k"}
    assert refused(boto.put_object, **where, Body=b"0", IfMatch='"no"') == (404, "NoSuchKey")
    tag = boto.put_object(**where, Body=b"1", IfNoneMatch="*")["ETag"]
    assert refused(boto.put_object, **where, Body=b"2", IfNoneMatch="*") == (412, "PreconditionFailed")
    assert refused(boto.put_object, **where, Body=b"2", IfMatch='"no"') == (412, "PreconditionFailed")
    assert refused(boto.delete_object, **where, IfMatch='"no"') == (412, "PreconditionFailed")
    assert boto.get_object(**where)["Body"].read() == b"1"
    newer = boto.put_object(**where, Body=b"2", IfMatch=tag)["ETag"]
    boto.delete_object(**where, IfMatch=newer)
    assert refused(boto.head_object, **where)[0] == 404


def test_an_answer_is_dressed_as_the_reader_wants_it(boto: Any, bucket: str) -> None:
    boto.put_object(Bucket=bucket, Key="k", Body=b"hello", ContentType="text/plain")
    answer = boto.get_object(
        Bucket=bucket,
        Key="k",
        ResponseContentType="text/html",
        ResponseCacheControl="no-store",
        ResponseContentDisposition="inline",
        ResponseContentEncoding="identity",
        ResponseContentLanguage="de",
    )
    assert (answer["ContentType"], answer["CacheControl"]) == ("text/html", "no-store")
    assert (answer["ContentDisposition"], answer["ContentLanguage"]) == ("inline", "de")


def test_lists_go_page_by_page(boto: Any, bucket: str) -> None:
    keys = sorted(["a", "b/1", "b/2", "b/c/3", "d e", "é", "z&<>\"'", "z\r\n\t", "😀"], key=lambda key: key.encode())
    put(boto, bucket, *keys)
    for version in ("list_objects_v2", "list_objects"):
        for size in (1, 2, 1000):
            pages = list(boto.get_paginator(version).paginate(Bucket=bucket, PaginationConfig={"PageSize": size}))
            assert [each["Key"] for page in pages for each in page.get("Contents", ())] == keys
            assert len(pages) == -(-len(keys) // size)
            found: list[str] = []
            for page in boto.get_paginator(version).paginate(Bucket=bucket, Delimiter="/", MaxKeys=size):
                found += [each["Key"] for each in page.get("Contents", ())]
                found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            assert sorted(found) == sorted({key.split("/")[0] + "/" if "/" in key else key for key in keys})


def test_lists_by_prefix_and_beginning(boto: Any, bucket: str) -> None:
    put(boto, bucket, "a", "b/1", "b/2", "b/c/3", "d")

    def keys(**arguments: Any) -> list[str]:
        page = boto.list_objects_v2(Bucket=bucket, **arguments)
        found = [each["Key"] for each in page.get("Contents", ())]
        found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
        assert page["KeyCount"] == len(found)
        return found

    assert keys(Prefix="b/") == ["b/1", "b/2", "b/c/3"]
    assert keys(Prefix="b/", Delimiter="/") == ["b/1", "b/2", "b/c/"]
    assert keys(StartAfter="b/1") == ["b/2", "b/c/3", "d"]
    assert keys(Prefix="nothing") == keys(MaxKeys=0) == []
    assert boto.list_objects_v2(Bucket=bucket, FetchOwner=True, MaxKeys=1)["Contents"][0]["Owner"]["ID"] == "forkyard"
    assert refused(boto.list_objects_v2, Bucket=bucket, Delimiter="-") == (400, "InvalidArgument")
    assert refused(boto.list_objects_v2, Bucket=bucket, ContinuationToken="é") == (400, "InvalidArgument")


def test_many_are_deleted_at_once(boto: Any, bucket: str) -> None:
    keys = [f"k{i}" for i in range(20)]
    put(boto, bucket, *keys)
    named = [{"Key": key} for key in [*keys[:10], "was never there"]]
    answer = boto.delete_objects(Bucket=bucket, Delete={"Objects": [*named, {"Key": "../up"}]})
    assert {each["Key"] for each in answer["Deleted"]} == {*keys[:10], "was never there"}
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [("../up", "InvalidKey")]
    answer = boto.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True})
    assert "Deleted" not in answer and "Errors" not in answer
    assert boto.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert refused(boto.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": "k"}] * 1001}) == (
        400,
        "MalformedXML",
    )


def test_copies(s3: Serving, boto: Any, bucket: str) -> None:
    boto.put_object(Bucket=bucket, Key="a b", Body=b"hello", ContentType="text/x", Metadata={"m": "1"})
    source = {"Bucket": bucket, "Key": "a b"}
    tag = boto.copy_object(Bucket=bucket, Key="c", CopySource=source)["CopyObjectResult"]["ETag"]
    found = boto.get_object(Bucket=bucket, Key="c")
    assert (found["ContentType"], found["Metadata"], found["ETag"]) == ("text/x", {"m": "1"}, tag)
    boto.copy_object(
        Bucket=bucket,
        Key="a b",
        CopySource=source,
        MetadataDirective="REPLACE",
        Metadata={"n": "2"},
        ContentType="text/y",
    )
    found = boto.get_object(Bucket=bucket, Key="a b")
    assert (found["ContentType"], found["Metadata"], found["Body"].read()) == ("text/y", {"n": "2"}, b"hello")
    assert refused(boto.copy_object, **source, CopySource=source) == (400, "InvalidRequest")
    nothing = {"Bucket": bucket, "Key": "no"}
    assert refused(boto.copy_object, Bucket=bucket, Key="d", CopySource=nothing) == (404, "NoSuchKey")
    other = s3.disk("another")
    elsewhere = {"Bucket": other.info.name, "Key": "k"}
    assert refused(boto.copy_object, Bucket=bucket, Key="d", CopySource=elsewhere) == (403, "AccessDenied")
    for condition, holds in ({"CopySourceIfMatch": tag}, True), ({"CopySourceIfNoneMatch": tag}, False):
        if holds:
            boto.copy_object(Bucket=bucket, Key="e", CopySource=source, **condition)
        else:
            wrong = refused(boto.copy_object, Bucket=bucket, Key="f", CopySource=source, **condition)
            assert wrong == (412, "PreconditionFailed")


def test_a_large_object_comes_in_parts(boto: Any, bucket: str) -> None:
    content = random.Random(1).randbytes(13 * MIB + 7)
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=3)
    boto.upload_fileobj(io.BytesIO(content), bucket, "big", Config=parts, ExtraArgs={"Metadata": {"m": "1"}})
    into = io.BytesIO()
    boto.download_fileobj(bucket, "big", into, Config=parts)
    assert into.getvalue() == content
    info = boto.head_object(Bucket=bucket, Key="big")
    pieces = [hashlib.md5(content[at : at + 5 * MIB]).digest() for at in range(0, len(content), 5 * MIB)]
    assert info["ETag"] == f'"{hashlib.md5(b"".join(pieces)).hexdigest()}-3"'
    assert info["Metadata"] == {"m": "1"}
    assert "Uploads" not in boto.list_multipart_uploads(Bucket=bucket)


def test_parts_are_listed_copied_and_given_up(boto: Any, bucket: str) -> None:
    where = {"Bucket": bucket, "Key": "k"}
    boto.put_object(Bucket=bucket, Key="source", Body=bytes(range(256)))
    upload = boto.create_multipart_upload(**where, ContentType="text/x")["UploadId"]
    first = boto.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"a" * 5 * MIB)["ETag"]
    source = {"Bucket": bucket, "Key": "source"}
    copied = boto.upload_part_copy(
        **where, UploadId=upload, PartNumber=7, CopySource=source, CopySourceRange="bytes=16-31"
    )["CopyPartResult"]["ETag"]
    listed = boto.list_parts(**where, UploadId=upload)
    assert [(each["PartNumber"], each["Size"], each["ETag"]) for each in listed["Parts"]] == [
        (1, 5 * MIB, first),
        (7, 16, copied),
    ]
    page = boto.list_parts(**where, UploadId=upload, MaxParts=1)
    assert (page["IsTruncated"], page["NextPartNumberMarker"], len(page["Parts"])) == (True, 1, 1)
    rest = boto.list_parts(**where, UploadId=upload, PartNumberMarker=1)
    assert (rest["IsTruncated"], [each["PartNumber"] for each in rest["Parts"]]) == (False, [7])
    beyond = {"CopySource": source, "CopySourceRange": "bytes=16-999"}
    assert refused(boto.upload_part_copy, **where, UploadId=upload, PartNumber=8, **beyond) == (416, "InvalidRange")
    assert [each["UploadId"] for each in boto.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload]
    parts = [{"PartNumber": 1, "ETag": first}, {"PartNumber": 7, "ETag": copied}]
    for wrong, code in (
        (parts[::-1], "InvalidPartOrder"),
        ([{"PartNumber": 2, "ETag": first}], "InvalidPart"),
        ([{"PartNumber": 1, "ETag": copied}], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        done = refused(boto.complete_multipart_upload, **where, UploadId=upload, MultipartUpload={"Parts": wrong})
        assert done == (400, code)
    whole = {"UploadId": upload, "MultipartUpload": {"Parts": parts}}
    assert refused(boto.complete_multipart_upload, **where, **whole, MpuObjectSize=5) == (400, "InvalidRequest")
    assert refused(boto.complete_multipart_upload, **where, **whole, IfMatch='"x"') == (404, "NoSuchKey")
    boto.complete_multipart_upload(**where, **whole, IfNoneMatch="*", MpuObjectSize=5 * MIB + 16)
    found = boto.get_object(**where)
    assert found["Body"].read() == b"a" * 5 * MIB + bytes(range(16, 32))
    assert found["ContentType"] == "text/x"
    other = boto.create_multipart_upload(Bucket=bucket, Key="other")["UploadId"]
    boto.abort_multipart_upload(Bucket=bucket, Key="other", UploadId=other)
    assert refused(boto.list_parts, Bucket=bucket, Key="other", UploadId=other) == (404, "NoSuchUpload")


def test_uploads_are_listed_page_by_page(boto: Any, bucket: str) -> None:
    keys = ["a", "b/1", "b/2", "c", "c"]
    begun = {(key, boto.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]) for key in keys}
    for size in (1, 2, 1000):
        pages = boto.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, PaginationConfig={"PageSize": size}
        )
        found = [(each["Key"], each["UploadId"]) for page in pages for each in page.get("Uploads", ())]
        assert (len(found), set(found)) == (5, begun)
        pages = boto.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": size}
        )
        shown = list(pages)
        assert [each["Prefix"] for page in shown for each in page.get("CommonPrefixes", ())] == ["b/"]
        assert [each["Key"] for page in shown for each in page.get("Uploads", ())] == ["a", "c", "c"]
    assert [each["Key"] for each in boto.list_multipart_uploads(Bucket=bucket, Prefix="b")["Uploads"]] == ["b/1", "b/2"]


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_checksum_is_held(boto: Any, bucket: str, algorithm: str, streamed: bool) -> None:
    body = io.BytesIO(b"hello") if streamed else b"hello"
    answer = boto.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm=algorithm)
    assert answer[f"Checksum{algorithm}"]
    wrong = {
        f"Checksum{algorithm}": base64.b64encode(bytes(len(base64.b64decode(answer[f"Checksum{algorithm}"])))).decode()
    }
    assert refused(boto.put_object, Bucket=bucket, Key="k", Body=b"other", **wrong) == (400, "BadDigest")
    assert boto.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-checksum-crc32c", "mnG7TA=="),
        ("x-amz-checksum-crc64nvme", "M3eFcAZSQlc="),
        ("x-amz-checksum-crc32", "NhCmhg=="),
        ("x-amz-checksum-sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00="),
        ("Content-MD5", "XUFAKrxLKna5cZ2REBfFkg=="),
        ("x-amz-content-sha256", hashlib.sha256(b"hello").hexdigest()),
    ],
)
def test_every_checksum_is_verified(s3: Serving, bucket: str, disk: Disk, name: str, value: str) -> None:
    right = s3.ask("PUT", f"/{bucket}/k", b"hello", {name: value})
    assert right.status == 200, right.body
    wrong = s3.ask("PUT", f"/{bucket}/k", b"hellO", {name: value})
    code = "XAmzContentSHA256Mismatch" if "sha256" in name else "BadDigest"
    assert (wrong.status, wrong.code) == (400, code)
    torn = s3.ask("PUT", f"/{bucket}/k", b"hello", {name: value[:-3]})
    assert (torn.status, torn.code in ("InvalidDigest", "InvalidArgument")) == (400, True)
    assert s3.ask("GET", f"/{bucket}/k").body == b"hello"


def test_boto_checks_nothing_when_told_so(s3: Serving, disk: Disk, bucket: str) -> None:
    plain = s3.boto(disk, request_checksum_calculation="when_required", response_checksum_validation="when_required")
    plain.put_object(Bucket=bucket, Key="k", Body=io.BytesIO(b"x" * 100_000))
    assert plain.head_object(Bucket=bucket, Key="k")["ContentLength"] == 100_000


def test_posix_owner_and_mode(s3: Serving, bucket: str) -> None:
    about = {"x-archil-mode": "0750", "x-archil-uid": "7", "x-archil-gid": "8"}
    assert s3.ask("PUT", f"/{bucket}/dir/k", b"x", about).status == 200
    headers = s3.ask("HEAD", f"/{bucket}/dir/k").headers
    assert [headers[name] for name in about] == ["750", "7", "8"]
    for name in about:
        assert s3.ask("PUT", f"/{bucket}/other", b"x", {name: "9x"}).code == "InvalidArgument"
    assert s3.ask("HEAD", f"/{bucket}/other").status == 404


def test_appends(s3: Serving, boto: Any, bucket: str) -> None:
    for piece in (b"one\n", b"two\n", b""):
        answer = s3.ask("PUT", f"/{bucket}/log?append=true", piece)
        assert answer.status == 200
    assert boto.get_object(Bucket=bucket, Key="log")["Body"].read() == b"one\ntwo\n"
    assert answer.headers["etag"] == f'"{hashlib.md5(b"one" + bytes([10]) + b"two" + bytes([10])).hexdigest()}"'
    large = s3.ask("PUT", f"/{bucket}/log?append=true", b"x" * (MIB + 1))
    assert (large.status, large.code) == (400, "EntityTooLarge")
    assert s3.ask("PUT", f"/{bucket}/log?append=false", b"x").code == "InvalidArgument"
    assert s3.ask("PUT", f"/{bucket}/log?append=true", b"x", {"If-Match": "*"}).code == "NotImplemented"
    wrong = s3.ask("PUT", f"/{bucket}/log?append=true", b"x", {"Content-MD5": "XUFAKrxLKna5cZ2REBfFkg=="})
    assert wrong.code == "BadDigest"
    assert boto.get_object(Bucket=bucket, Key="log")["Body"].read() == b"one\ntwo\n"


def test_disks_are_listed_and_made_as_buckets(s3: Serving, boto: Any, bucket: str) -> None:
    assert [each["Name"] for each in boto.list_buckets()["Buckets"]] == [bucket]
    key = s3.call(lambda: s3.server.keys.create("lister"))[0]
    secret = s3.call(lambda: s3.server.keys.signing_secret(key.id))
    everything = s3.boto_with(key.id, secret or "")
    everything.create_bucket(Bucket="made-here")
    everything.create_bucket(Bucket="made-here")
    assert {bucket, "made-here"} <= {each["Name"] for each in everything.list_buckets()["Buckets"]}
    assert [each["Name"] for each in everything.list_buckets(Prefix="made-")["Buckets"]] == ["made-here"]
    pages = everything.get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 1})
    assert {bucket, "made-here"} <= {each["Name"] for page in pages for each in page["Buckets"]}
    assert everything.get_bucket_location(Bucket="made-here")["LocationConstraint"] is None
    assert "Status" not in everything.get_bucket_versioning(Bucket="made-here")
    assert everything.head_bucket(Bucket="made-here")["BucketRegion"] == "us-east-1"
    assert refused(boto.create_bucket, Bucket="made-by-a-disk") == (404, "NoSuchBucket")
    assert refused(boto.create_bucket, Bucket="made-here") == (403, "AccessDenied")
    assert s3.ask("PUT", "/no.dots").code == "InvalidBucketName"


def test_what_no_disk_does_is_refused_by_name(s3: Serving, boto: Any, bucket: str) -> None:
    put(boto, bucket, "k")
    where = {"Bucket": bucket, "Key": "k"}
    for call, arguments in (
        (boto.put_object_tagging, {**where, "Tagging": {"TagSet": []}}),
        (boto.get_object, {**where, "VersionId": "1"}),
        (boto.get_object_acl, where),
        (boto.put_object, {**where, "Body": b"", "ACL": "public-read"}),
        (boto.put_object, {**where, "Body": b"", "StorageClass": "GLACIER"}),
        (boto.put_object, {**where, "Body": b"", "ServerSideEncryption": "AES256"}),
        (boto.put_object, {**where, "Body": b"", "Tagging": "a=b"}),
        (boto.get_bucket_policy, {"Bucket": bucket}),
        (boto.put_bucket_versioning, {"Bucket": bucket, "VersioningConfiguration": {"Status": "Enabled"}}),
        (boto.list_object_versions, {"Bucket": bucket}),
    ):
        assert refused(call, **arguments) == (501, "NotImplemented")
    assert refused(boto.delete_bucket, Bucket=bucket) == (405, "MethodNotAllowed")
    assert s3.ask("PATCH", f"/{bucket}/k").status == 405
    assert s3.ask("POST", f"/{bucket}/k").code == "InvalidRequest"
    assert boto.get_object(**where)["Body"].read() == b"k"
