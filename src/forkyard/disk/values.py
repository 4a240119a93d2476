"""The nouns of disks: what an object is, what is asked of one, what a listing shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from forkyard.disk.errors import DiskError

APPEND_LIMIT = 1 << 20
"""Bytes of one append."""

PUT_LIMIT = 5 << 30
"""Bytes of an object written in one piece, and of one part."""

OBJECT_LIMIT = 5 << 40
"""Bytes of an object that comes in parts."""

PART_FLOOR = 5 << 20
"""Bytes that each part but the last has at least."""

PARTS_LIMIT = 10_000
LIST_LIMIT = 1000
METADATA_LIMIT = 2048
"""Bytes of all names and values of an object's metadata together."""

DEFAULT_TYPE = "application/octet-stream"
"""The content type of an object that was given none."""

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class About:
    """What is said of an object beside its bytes. None: the default (0644, root, no content type).

    Metadata names are kept in lower case; values are text without control characters.
    """

    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class ObjectInfo:
    """One object as it stands. `etag` has no quotes: MD5 in hex, or S3's md5-of-md5s-N of an object put in N parts.

    `modified` is in seconds since 1970. A key that ends in "/" is a directory that was put as an object.
    """

    key: str
    size: int
    etag: str
    modified: float
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True)
class Condition:
    """When a write may happen: an ETag (with or without quotes), or "*" for any object at all. Both must hold."""

    if_match: str | None = None
    if_none_match: str | None = None

    def check(self, etag: str | None, key: str) -> None:
        """Raise unless an object with this ETag, or None for no object, may be written.

        NoSuchKey: `if_match` and no object. PreconditionFailed: any other mismatch.
        """
        if self.if_match is not None:
            if etag is None:
                raise DiskError("NoSuchKey", f"If-Match was given, but there is no object {key!r}")
            if not _names(self.if_match, etag):
                raise DiskError("PreconditionFailed", f"the ETag of {key!r} is {etag!r}, not the one of If-Match")
        if self.if_none_match is not None and etag is not None and _names(self.if_none_match, etag):
            raise DiskError("PreconditionFailed", f"there is an object {key!r} with the ETag {etag!r} (If-None-Match)")


def _names(wanted: str, etag: str) -> bool:
    return wanted.strip() == "*" or wanted.strip().strip('"') == etag


@dataclass(frozen=True)
class Range:
    """Bytes `first` to `last`, both included; `last` None: to the end; `first` None: the last `last` bytes."""

    first: int | None = None
    last: int | None = None

    def within(self, size: int) -> tuple[int, int]:
        """Start and end (excluded) in an object of `size` bytes. InvalidRange when no byte of it is meant."""
        if self.first is None:
            start, stop = max(0, size - (self.last or 0)), size
        else:
            start, stop = self.first, size if self.last is None else min(self.last + 1, size)
        if start < 0 or start >= stop:
            raise DiskError("InvalidRange", f"the range has no byte of the object's {size}")
        return start, stop


@dataclass(frozen=True)
class Listing:
    """A page: objects and common prefixes, each in the byte order of UTF-8; `next` is the next page's `after`."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...] = ()
    next: str | None = None


@dataclass(frozen=True)
class Part:
    """One part of an upload; `size` and `modified` are for reading."""

    number: int
    etag: str
    size: int = 0
    modified: float = 0.0


@dataclass(frozen=True)
class Upload:
    """An object that is being put in parts."""

    id: str
    key: str
    created: float


@dataclass(frozen=True)
class RootAttributes:
    """Owner and mode of a disk's top directory."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o755


@dataclass(frozen=True)
class Bucket:
    """Where a disk is kept that is not kept in a directory here: the keys of `bucket` that begin with `prefix`.

    Without keys the client's own ways apply (AWS_ACCESS_KEY_ID, profiles, roles). The secret is kept in the catalogue.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class DiskInfo:
    """What the catalogue says of a disk; `branch` is None for the disk itself."""

    id: str
    name: str
    created: float
    backend: Bucket | None = None
    root: RootAttributes = RootAttributes()
    branch: str | None = None


@dataclass(frozen=True)
class Branch:
    """A copy of a disk under a name of its own, reached as `<disk id>.<name>`."""

    disk_id: str
    name: str
    created: float
    source: str | None
    """The branch it was made of; None: the disk itself."""


@dataclass(frozen=True)
class User:
    """Somebody with access to one disk: by a token ("token"), or an AWS account ("awssts", a fact without effect)."""

    disk_id: str
    kind: str
    identifier: str
    nickname: str
    suffix: str
    """The last four characters of the token."""
    created: float


@dataclass(frozen=True)
class KeyPair:
    """An S3 key pair of one disk and its branches; SigV4 needs the secret as it is."""

    disk_id: str
    access_key: str
    secret_key: str = field(repr=False)
    nickname: str = ""
    created: float = 0.0
