"""What is said of an object beside its bytes: an extended attribute of its file.

So it comes and goes with the file in one step, and stays with it when a command moves, changes or copies it whole.
Guests can write it, too: it is read as something a stranger wrote.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from forkyard.disk.errors import DiskError
from forkyard.disk.keys import check_about
from forkyard.disk.values import NOTHING, About, ObjectInfo

_NAME = "user.forkyard"
_LIMIT = 1 << 14
_ETAG_LIMIT = 64


@dataclass(frozen=True)
class Attributes:
    """`whole` and `shown`: the MD5 of an object that came in parts, and the ETag to show while that is its MD5.

    `owner` is whom it was put for, where this process may not give files away. `marked` is of directories: it was put
    as an object.
    """

    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    whole: str = ""
    shown: str = ""
    owner: tuple[int, int] | None = None
    marked: bool = False

    def etag(self, md5: str) -> str:
        """The ETag of a file whose bytes have this MD5."""
        return self.shown if self.whole == md5 and self.shown else md5


PLAIN = Attributes()


def read_attributes(fd: int) -> Attributes:
    """Those of an open file or directory; what makes no sense counts as nothing."""
    try:
        raw = os.getxattr(fd, _NAME)
    except OSError as err:
        if err.errno in (errno.ENODATA, errno.ENOTSUP, errno.ERANGE):
            return PLAIN
        raise
    if len(raw) > _LIMIT:
        return PLAIN
    try:
        return _parsed(json.loads(raw))
    except (ValueError, TypeError, LookupError, RecursionError, DiskError):
        return PLAIN


def _parsed(said: Any) -> Attributes:
    metadata = {str(name): str(text) for name, text in dict(said["metadata"]).items()}
    content_type = said["content_type"]
    owner = None if said["owner"] is None else (int(said["owner"][0]), int(said["owner"][1]))
    about = About(None if content_type is None else str(content_type), metadata, None, *(owner or (None, None)))
    check_about(about)
    whole, shown = str(said["whole"]), str(said["shown"])
    if not (shown.isascii() and shown.isprintable() and len(shown) <= _ETAG_LIMIT and '"' not in shown):
        shown = ""
    return Attributes(about.content_type, metadata, whole, shown, owner, said["marked"] is True)


def write_attributes(fd: int, attributes: Attributes) -> None:
    """Leave them on an open file or directory; nothing is written when there is nothing to say."""
    if attributes == PLAIN:
        return
    said = asdict(attributes) | {"metadata": dict(attributes.metadata)}
    os.setxattr(fd, _NAME, json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode())


def mark_no_object(fd: int) -> None:
    """A directory that was put as an object is one no more."""
    os.removexattr(fd, _NAME)


def settle(fd: int, about: About, mode: int, **more: Any) -> Attributes:
    """Give a new file or directory its owner, mode and attributes."""
    owner = None
    if about.uid is not None or about.gid is not None:
        owner = (about.uid or 0, about.gid or 0)
        if os.getuid() == 0:
            os.fchown(fd, *owner)
            owner = None
    attributes = Attributes(about.content_type, about.metadata, owner=owner, **more)
    write_attributes(fd, attributes)
    os.fchmod(fd, mode if about.mode is None else about.mode)
    return attributes


def describe(key: str, found: os.stat_result, size: int, md5: str, attributes: Attributes) -> ObjectInfo:
    """The object a file is. Files of the user who serves a disk are root's inside sandboxes, and so they are told."""
    uid, gid = attributes.owner or (found.st_uid, found.st_gid)
    if os.getuid() != 0 and attributes.owner is None:
        uid, gid = (0 if uid == os.getuid() else uid), (0 if gid == os.getgid() else gid)
    return ObjectInfo(
        key,
        size,
        attributes.etag(md5),
        found.st_mtime,
        found.st_mode & 0o7777,
        uid,
        gid,
        attributes.content_type,
        attributes.metadata,
    )
