"""Objects: read, written, appended to, copied, removed."""

from __future__ import annotations

import re

from forkyard.disk import APPEND_LIMIT, Condition, Disk, DiskError, ObjectInfo, Range, Reading
from forkyard.server.s3.about import about_of, about_of_info, headers_of, validators
from forkyard.server.s3.bodies import LARGEST_PUT, body_of
from forkyard.server.s3.conditions import NotModified, check, names
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.replies import Asked, Reply, iso_date, quoted, told
from forkyard.server.s3.request import Request

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
COPY_CONDITION = "x-amz-copy-source-"


async def get_object(asked: Asked) -> Reply:
    """GET of a key: all of it, or a range, if the conditions hold."""
    request = asked.request
    wanted = _range(request.header("range"))
    if wanted is not None and request.header("if-range") and not await _is_same(asked):
        wanted = None
    try:
        reading = await asked.disk.get(asked.key, wanted)
    except DiskError as err:
        if err.code == "InvalidRange":
            info = await asked.disk.head(asked.key)
            _check(request, info)
            raise _beyond(info.size) from None
        raise
    try:
        _check(request, reading.info)
        headers = headers_of(reading.info, request)
        headers["Content-Length"] = str(reading.stop - reading.start)
        if wanted is not None:
            headers["Content-Range"] = f"bytes {reading.start}-{reading.stop - 1}/{reading.info.size}"
    except NotModified:
        await reading.close()
        return Reply(304, validators(reading.info))
    except BaseException:
        await reading.close()
        raise
    return Reply(200 if wanted is None else 206, headers, reading=reading)


async def head_object(asked: Asked) -> Reply:
    """HEAD of a key: what GET would say."""
    info = await asked.disk.head(asked.key)
    try:
        _check(asked.request, info)
    except NotModified:
        return Reply(304, validators(info))
    headers = headers_of(info, asked.request)
    wanted = _range(asked.request.header("range"))
    if wanted is None:
        return Reply(200, {**headers, "Content-Length": str(info.size)})
    try:
        start, stop = wanted.within(info.size)
    except DiskError:
        raise _beyond(info.size) from None
    about = {"Content-Length": str(stop - start), "Content-Range": f"bytes {start}-{stop - 1}/{info.size}"}
    return Reply(206, headers | about)


async def put_object(asked: Asked) -> Reply:
    """PUT of a key: the object is there when all of the body came and was what it was said to be."""
    about = about_of(asked.request)
    body = body_of(asked.request, asked.caller, LARGEST_PUT)
    info = await asked.disk.put(asked.key, body.pieces(), when=condition_of(asked.request), about=about)
    return Reply(200, {"ETag": quoted(info.etag), **body.sums.told})


async def append_object(asked: Asked) -> Reply:
    """PUT of a key with `append=true`: the body is added to the object's end."""
    if asked.request.parameter("append") != "true":
        raise S3Error("InvalidArgument", "append is 'true' or not there", {"ArgumentName": "append"})
    if condition_of(asked.request) is not None:
        raise S3Error("NotImplemented", "an append has no conditions; leave If-Match and If-None-Match out")
    about = about_of(asked.request)
    body = body_of(asked.request, asked.caller, APPEND_LIMIT)
    info = await asked.disk.append(asked.key, await body.whole(), about=about)
    return Reply(200, {"ETag": quoted(info.etag), **body.sums.told})


async def delete_object(asked: Asked) -> Reply:
    """DELETE of a key; one that is not there counts as deleted."""
    await asked.disk.delete(asked.key, condition_of(asked.request))
    return Reply(204)


async def copy_object(asked: Asked, source: Disk, key: str) -> Reply:
    """PUT of a key with another object as its body."""
    request = asked.request
    directive = request.header("x-amz-metadata-directive", "COPY")
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE")
    if directive == "COPY" and (source.info, key) == (asked.disk.info, asked.key):
        raise S3Error("InvalidRequest", "an object is copied to itself only with x-amz-metadata-directive: REPLACE")
    about = about_of(request) if directive == "REPLACE" else None
    reading = await opened_source(request, source, key)
    try:
        info = await asked.disk.put(
            asked.key, aiter(reading), when=condition_of(request), about=about or about_of_info(reading.info)
        )
    finally:
        await reading.close()
    return told("CopyObjectResult", [("LastModified", iso_date(info.modified)), ("ETag", quoted(info.etag))])


async def opened_source(request: Request, source: Disk, key: str, part: Range | None = None) -> Reading:
    """The source of a copy, open, if it meets the x-amz-copy-source-if-* conditions."""
    reading = await source.get(key, part)
    try:
        check(request.headers, reading.info.etag, reading.info.modified, COPY_CONDITION)
    except BaseException:
        await reading.close()
        raise
    return reading


def condition_of(request: Request) -> Condition | None:
    """When a write may happen. Raises S3Error for a condition that writes do not have."""
    for name in ("if-modified-since", "if-unmodified-since"):
        if name in request.headers:
            raise S3Error(
                "NotImplemented", f"a write has no condition {name}; If-Match and If-None-Match are those it has"
            )
    match, none_match = request.header("if-match") or None, request.header("if-none-match") or None
    if match is None and none_match is None:
        return None
    return Condition(match, none_match)


def _check(request: Request, info: ObjectInfo) -> None:
    check(request.headers, info.etag, info.modified)


async def _is_same(asked: Asked) -> bool:
    info = await asked.disk.head(asked.key)
    given = asked.request.header("if-range")
    return names(given, info.etag) if given.startswith('"') else given == validators(info)["Last-Modified"]


def _range(text: str) -> Range | None:
    """The range that is asked for; None when there is none, several, or nothing that is one: then all is sent."""
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    first, last = (int(number) if number else None for number in found.groups())
    if first is not None and last is not None and last < first:
        return None
    return Range(first, last)


def _beyond(size: int) -> S3Error:
    return S3Error("InvalidRange", f"the range has no byte of the object's {size}", {"ActualObjectSize": str(size)})
