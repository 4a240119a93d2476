"""Objects that come in parts."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from forkyard.disk import Disk, Part, Range, Upload
from forkyard.server.s3.about import about_of
from forkyard.server.s3.bodies import LARGEST_DOCUMENT, LARGEST_PUT, body_of
from forkyard.server.s3.checksums import PREFIX
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.listing import Page, delimiter_of, encoding_of
from forkyard.server.s3.objects import condition_of, opened_source
from forkyard.server.s3.replies import OWNER, Asked, Reply, iso_date, quoted, told
from forkyard.server.s3.xml import Tree, child_text, parse

MOST_PARTS = 10_000
_PAGE = 1000
_NUMBER = re.compile(r"\s*[0-9]{1,6}\s*", re.ASCII)
_COPY_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
_OWNER: Tree = [("ID", OWNER), ("DisplayName", OWNER)]


async def begin_upload(asked: Asked) -> Reply:
    """POST of a key with `uploads`."""
    upload = await asked.disk.begin_upload(asked.key, about=about_of(asked.request))
    tree: Tree = [("Bucket", asked.request.bucket), ("Key", asked.key), ("UploadId", upload.id)]
    return told("InitiateMultipartUploadResult", tree)


async def put_part(asked: Asked) -> Reply:
    """PUT of a key with `uploadId` and `partNumber`."""
    upload, number = _upload_and_number(asked)
    body = body_of(asked.request, asked.caller, LARGEST_PUT)
    part = await asked.disk.put_part(asked.key, upload, number, body.pieces())
    return Reply(200, {"ETag": quoted(part.etag), **body.sums.told})


async def copy_part(asked: Asked, source: Disk, key: str) -> Reply:
    """PUT of a part whose body is another object, or a range of it."""
    upload, number = _upload_and_number(asked)
    text = asked.request.header("x-amz-copy-source-range")
    found = _COPY_RANGE.fullmatch(text)
    if text and (found is None or int(found[2]) < int(found[1])):
        raise S3Error("InvalidArgument", "x-amz-copy-source-range is written as bytes=FIRST-LAST")
    wanted = Range(int(found[1]), int(found[2])) if found else None
    reading = await opened_source(asked.request, source, key, wanted)
    try:
        if found and reading.stop != int(found[2]) + 1:
            raise S3Error("InvalidRange", f"the source has {reading.info.size} bytes, and the range goes beyond")
        part = await asked.disk.put_part(asked.key, upload, number, aiter(reading))
    finally:
        await reading.close()
    return told("CopyPartResult", [("LastModified", iso_date(part.modified)), ("ETag", quoted(part.etag))])


async def complete_upload(asked: Asked) -> Reply:
    """POST of a key with `uploadId`, the body naming the parts."""
    if named := [name for name in asked.request.headers if name.startswith(PREFIX) and name != PREFIX + "type"]:
        # The checksum here is of the object or of its parts' checksums, not of this body.
        raise S3Error(
            "NotImplemented", f"parts are checked as they come, and {named[0]} of the whole is not; leave it out"
        )
    body = await body_of(asked.request, asked.caller, LARGEST_DOCUMENT).whole()
    parts = [_part(each) for each in parse(body, "CompleteMultipartUpload").findall("Part")]
    if not 0 < len(parts) <= MOST_PARTS:
        raise S3Error("MalformedXML", f"an upload is completed with 1 to {MOST_PARTS} parts")
    upload = asked.request.parameter("uploadId")
    await _check_size(asked, upload, {part.number for part in parts})
    info = await asked.disk.complete_upload(asked.key, upload, parts, when=condition_of(asked.request))
    tree: Tree = [
        ("Location", asked.request.path),
        ("Bucket", asked.request.bucket),
        ("Key", asked.key),
        ("ETag", quoted(info.etag)),
    ]
    return told("CompleteMultipartUploadResult", tree)


async def abort_upload(asked: Asked) -> Reply:
    """DELETE of a key with `uploadId`."""
    await asked.disk.abort_upload(asked.key, asked.request.parameter("uploadId"))
    return Reply(204)


async def list_parts(asked: Asked) -> Reply:
    """GET of a key with `uploadId`."""
    request = asked.request
    upload = request.parameter("uploadId")
    most = min(request.number("max-parts", _PAGE, 0, 1 << 31), _PAGE)
    after = request.number("part-number-marker", 0, 0, 1 << 31)
    left = [part for part in await asked.disk.parts(asked.key, upload) if part.number > after]
    shown = left[:most]
    tree: list[tuple[str, str | int | bool | Tree]] = [
        ("Bucket", request.bucket),
        ("Key", asked.key),
        ("UploadId", upload),
        ("Initiator", _OWNER),
        ("Owner", _OWNER),
        ("StorageClass", "STANDARD"),
        ("PartNumberMarker", after),
        ("NextPartNumberMarker", shown[-1].number if shown else after),
        ("MaxParts", most),
        ("IsTruncated", 0 < len(shown) < len(left)),
    ]
    return told("ListPartsResult", [*tree, *(("Part", _told_part(part)) for part in shown)])


async def list_uploads(asked: Asked) -> Reply:
    """GET of a disk with `uploads`."""
    request = asked.request
    encoded = encoding_of(request)
    prefix, delimiter = request.parameter("prefix"), delimiter_of(request)
    key_mark, id_mark = request.parameter("key-marker"), request.parameter("upload-id-marker")
    most = min(request.number("max-uploads", _PAGE, 0, 1 << 31), _PAGE)
    page: Page[Upload] = Page(prefix, delimiter, most)
    for upload in sorted(await asked.disk.uploads(prefix), key=lambda each: (each.key.encode(), each.id)):
        if not _is_before(upload, key_mark, id_mark) and not page.take(upload.key, upload):
            break
    tree: list[tuple[str, str | int | bool | Tree]] = [
        ("Bucket", request.bucket),
        ("KeyMarker", encoded(key_mark)),
        ("UploadIdMarker", id_mark),
        ("NextKeyMarker", encoded(page.last)),
        ("NextUploadIdMarker", page.items[-1].id if page.items and not page.last_is_prefix else ""),
        ("Delimiter", encoded(delimiter)),
        ("Prefix", encoded(prefix)),
        ("MaxUploads", most),
        ("IsTruncated", page.more),
    ]
    if request.has("encoding-type"):
        tree.append(("EncodingType", "url"))
    tree += [("Upload", _told_upload(upload, encoded(upload.key))) for upload in page.items]
    tree += [("CommonPrefixes", [("Prefix", encoded(each))]) for each in page.prefixes]
    return told("ListMultipartUploadsResult", tree)


async def _check_size(asked: Asked, upload: str, numbers: set[int]) -> None:
    said = asked.request.header("x-amz-mp-object-size")
    if not said:
        return
    size = sum(part.size for part in await asked.disk.parts(asked.key, upload) if part.number in numbers)
    if said != str(size):
        raise S3Error("InvalidRequest", f"the parts have {size} bytes together, not what x-amz-mp-object-size says")


def _is_before(upload: Upload, key_mark: str, id_mark: str) -> bool:
    """Whether an upload was on a page before; those of one key are in the order of their ids."""
    if not key_mark:
        return False
    if upload.key == key_mark and id_mark:
        return upload.id <= id_mark
    return upload.key.encode() <= key_mark.encode() or (key_mark.endswith("/") and upload.key.startswith(key_mark))


def _told_part(part: Part) -> Tree:
    return [
        ("PartNumber", part.number),
        ("LastModified", iso_date(part.modified)),
        ("ETag", quoted(part.etag)),
        ("Size", part.size),
    ]


def _told_upload(upload: Upload, key: str) -> Tree:
    return [
        ("Key", key),
        ("UploadId", upload.id),
        ("Initiator", _OWNER),
        ("Owner", _OWNER),
        ("StorageClass", "STANDARD"),
        ("Initiated", iso_date(upload.created)),
    ]


def _part(element: Element) -> Part:
    number, etag = child_text(element, "PartNumber"), child_text(element, "ETag")
    if number is None or etag is None or not _NUMBER.fullmatch(number):
        raise S3Error("MalformedXML", "each <Part> has a <PartNumber> and an <ETag>")
    return Part(int(number), etag.strip().strip('"'))


def _upload_and_number(asked: Asked) -> tuple[str, int]:
    upload = asked.request.parameter("uploadId")
    if not upload or not asked.request.has("partNumber"):
        raise S3Error("InvalidArgument", "a part is put with ?partNumber=...&uploadId=...")
    return upload, asked.request.number("partNumber", 0, 1, MOST_PARTS)
