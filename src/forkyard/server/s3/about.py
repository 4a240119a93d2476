"""What is said of an object beside its bytes, from headers and back into headers.

S3 keeps a few of HTTP's own headers with an object. A disk keeps metadata, so they are in there under a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from forkyard.disk import DEFAULT_TYPE, About, ObjectInfo
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.replies import http_date, quoted
from forkyard.server.s3.request import Request

_META = "x-amz-meta-"
_HELD = "http-header-"
_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
_OVERRIDES = ("content-type", *_HEADERS)
_MODE = re.compile(r"(?:0o?)?([0-7]{1,4})")
_ID = re.compile(r"[0-9]{1,10}")
# What would be a promise that is not kept. x-amz-acl: nobody but the owner is let in, whatever "private" is called.
_REFUSED = re.compile(
    r"x-amz-(?:server-side-encryption.*|copy-source-server-side.*|tagging|object-lock-.*|grant-.*"
    r"|website-redirect-location|write-offset-bytes|rename-.*|mfa)"
)
_PRIVATE = ("private", "bucket-owner-full-control", "bucket-owner-read")


def refuse_unkept(headers: Mapping[str, str]) -> None:
    """Raise S3Error (NotImplemented) for a header that asks for what no disk does."""
    for name, value in headers.items():
        acl = name == "x-amz-acl" and value not in _PRIVATE
        colder = name == "x-amz-storage-class" and value != "STANDARD"
        if acl or colder or _REFUSED.fullmatch(name):
            raise S3Error("NotImplemented", f"a disk does nothing of what the header {name} asks for; leave it out")
    owner = headers.get("x-amz-expected-bucket-owner", "forkyard")
    if owner != "forkyard":
        raise S3Error(
            "AccessDenied", "the owner of this disk is 'forkyard', not the one of x-amz-expected-bucket-owner"
        )


def about_of(request: Request) -> About:
    """What a request says of the object it writes. Raises S3Error."""
    metadata = {name.removeprefix(_META): request.header(name) for name in request.headers if name.startswith(_META)}
    for name in _HEADERS:
        value = request.header(name)
        if name == "content-encoding":  # how this body is sent is nothing of the object's
            value = ",".join(word for word in re.split(r"\s*,\s*", value) if word.lower() != "aws-chunked")
        if value:
            metadata[_HELD + name] = value
    mode = _matched(request, "x-archil-mode", _MODE, "a mode in octal, as 644")
    uid = _matched(request, "x-archil-uid", _ID, "the number of a user")
    gid = _matched(request, "x-archil-gid", _ID, "the number of a group")
    return About(
        content_type=request.header("content-type") or None,
        metadata=metadata,
        mode=int(mode, 8) if mode else None,
        uid=int(uid) if uid else None,
        gid=int(gid) if gid else None,
    )


def about_of_info(info: ObjectInfo) -> About:
    """What is said of an object, to be said of its copy."""
    return About(info.content_type, info.metadata, info.mode, info.uid, info.gid)


def _matched(request: Request, name: str, pattern: re.Pattern[str], what: str) -> str:
    text = request.header(name)
    found = pattern.fullmatch(text)
    if text and not found:
        raise S3Error("InvalidArgument", f"{name} is {what}", {"ArgumentName": name})
    return found[found.re.groups] if found else ""


def headers_of(info: ObjectInfo, request: Request) -> dict[str, str]:
    """The headers an object is read with; `response-*` parameters take the place of what is kept."""
    headers = validators(info)
    headers["Accept-Ranges"] = "bytes"
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Content-Type"] = info.content_type or DEFAULT_TYPE
    headers["x-archil-mode"] = f"{info.mode:o}"
    headers["x-archil-uid"], headers["x-archil-gid"] = str(info.uid), str(info.gid)
    for name, value in info.metadata.items():
        header = name.removeprefix(_HELD)
        headers[header.title() if header in _HEADERS and header != name else _META + name] = value
    for name in _OVERRIDES:
        if value := request.parameter(f"response-{name}"):
            if not value.isprintable():
                raise S3Error("InvalidArgument", f"response-{name} is text without control characters")
            headers[name.title()] = value
    return headers


def validators(info: ObjectInfo) -> dict[str, str]:
    """The headers that tell one state of an object from another."""
    return {"ETag": quoted(info.etag), "Last-Modified": http_date(info.modified)}
