"""Lists of objects, in both of S3's versions, and the rules all lists of keys share."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from forkyard.disk import LIST_LIMIT, Listing, ObjectInfo
from forkyard.server.s3.errors import S3Error
from forkyard.server.s3.replies import OWNER, Asked, Reply, iso_date, quoted, told
from forkyard.server.s3.request import Request
from forkyard.server.s3.xml import Tree, url_encoded

T = TypeVar("T")
_NOTHING = Listing((), ())


async def list_objects_v2(asked: Asked) -> Reply:
    """GET of a disk with `list-type=2`."""
    request = asked.request
    encoded = encoding_of(request)
    token, start = request.parameter("continuation-token"), request.parameter("start-after")
    after = _key_of(token) if request.has("continuation-token") else start
    most, page = await _page(asked, after)
    tree: list[tuple[str, str | int | bool | Tree]] = [
        *_about(request, encoded),
        ("MaxKeys", most),
        ("KeyCount", len(page.objects) + len(page.prefixes)),
        ("IsTruncated", page.next is not None),
    ]
    if token:
        tree.append(("ContinuationToken", token))
    if start:
        tree.append(("StartAfter", encoded(start)))
    if page.next is not None:
        tree.append(("NextContinuationToken", base64.urlsafe_b64encode(page.next.encode()).decode()))
    with_owner = request.parameter("fetch-owner") == "true"
    return told("ListBucketResult", [*tree, *_told(page, encoded, with_owner)])


async def list_objects(asked: Asked) -> Reply:
    """GET of a disk as the first version has it: pages go on after a `marker`."""
    request = asked.request
    encoded = encoding_of(request)
    marker = request.parameter("marker")
    most, page = await _page(asked, marker)
    tree: list[tuple[str, str | int | bool | Tree]] = [
        *_about(request, encoded),
        ("Marker", encoded(marker)),
        ("MaxKeys", most),
        ("IsTruncated", page.next is not None),
    ]
    if page.next is not None:
        tree.append(("NextMarker", encoded(page.next)))
    return told("ListBucketResult", [*tree, *_told(page, encoded, with_owner=True)])


async def _page(asked: Asked, after: str) -> tuple[int, Listing]:
    request = asked.request
    most = min(request.number("max-keys", LIST_LIMIT, 0, 1 << 31), LIST_LIMIT)
    delimiter = delimiter_of(request)
    if most == 0:
        return 0, _NOTHING
    return most, await asked.disk.list(request.parameter("prefix"), delimiter, after, most)


def encoding_of(request: Request) -> Callable[[str], str]:
    """How keys are written in an answer."""
    if not request.has("encoding-type"):
        return str
    if request.parameter("encoding-type") != "url":
        raise S3Error("InvalidArgument", "encoding-type is 'url' or not there", {"ArgumentName": "encoding-type"})
    return url_encoded


def delimiter_of(request: Request) -> str:
    """What keys are cut at. Raises S3Error: a disk is made of directories, so that "/" is the only one."""
    delimiter = request.parameter("delimiter")
    if delimiter not in ("", "/"):
        raise S3Error("InvalidArgument", "the delimiter is '/' or not there", {"ArgumentName": "delimiter"})
    return delimiter


def _about(request: Request, encoded: Callable[[str], str]) -> list[tuple[str, str | int | bool | Tree]]:
    tree: list[tuple[str, str | int | bool | Tree]] = [
        ("Name", request.bucket),
        ("Prefix", encoded(request.parameter("prefix"))),
    ]
    if delimiter := request.parameter("delimiter"):
        tree.append(("Delimiter", encoded(delimiter)))
    if request.has("encoding-type"):
        tree.append(("EncodingType", "url"))
    return tree


def _told(page: Listing, encoded: Callable[[str], str], with_owner: bool) -> Tree:
    objects = [("Contents", _told_object(info, encoded, with_owner)) for info in page.objects]
    prefixes: Tree = [("CommonPrefixes", [("Prefix", encoded(prefix))]) for prefix in page.prefixes]
    return [*objects, *prefixes]


def _told_object(info: ObjectInfo, encoded: Callable[[str], str], with_owner: bool) -> Tree:
    owner: Tree = [("Owner", [("ID", OWNER), ("DisplayName", OWNER)])] if with_owner else []
    return [
        ("Key", encoded(info.key)),
        ("LastModified", iso_date(info.modified)),
        ("ETag", quoted(info.etag)),
        ("Size", info.size),
        *owner,
        ("StorageClass", "STANDARD"),
    ]


def _key_of(token: str) -> str:
    try:
        key = base64.b64decode(token, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        key = ""
    if not key:
        raise S3Error("InvalidArgument", "the continuation-token is none that this server gave")
    return key


@dataclass(slots=True)
class Page(Generic[T]):
    """A page of a list by keys, filled in their order: items, or what they have in common up to a delimiter."""

    prefix: str
    delimiter: str
    most: int
    items: list[T] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    last: str = ""
    last_is_prefix: bool = False
    more: bool = False

    def take(self, key: str, item: T) -> bool:
        """Put one more on the page; False when it is full."""
        head, cut, _ = key[len(self.prefix) :].partition(self.delimiter) if self.delimiter else ("", "", "")
        common = self.prefix + head + cut if cut else ""
        if common and common == self.last:
            return True
        if len(self.items) + len(self.prefixes) >= self.most:
            self.more = self.most > 0
            return False
        if common:
            self.prefixes.append(common)
        else:
            self.items.append(item)
        self.last, self.last_is_prefix = common or key, bool(common)
        return True
