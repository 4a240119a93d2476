"""Which keys a disk keeps. A key is a path below the disk's top directory, kept byte for byte.

Refused, before anything is read or written: an empty key; more than 1,024 bytes of UTF-8, or a segment of more than
255; a "/" at the beginning; empty, "." and ".." segments; NUL; half a surrogate pair. A "/" at the end means a
directory. Everything else is kept as it is: spaces, line ends, any Unicode without normalisation.
"""

from __future__ import annotations

import re

from forkyard.disk.errors import DiskError
from forkyard.disk.values import METADATA_LIMIT, About

KEY_LIMIT = 1024
SEGMENT_LIMIT = 255
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MODES = 0o7777
_IDS = 1 << 31


def check_key(key: str) -> None:
    """Raise InvalidKey or KeyTooLongError for a key that no disk keeps."""
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        raise DiskError("InvalidKey", "a key is Unicode text, and this one holds half a surrogate pair") from None
    if not raw:
        raise DiskError("InvalidKey", "a key has at least one character")
    if len(raw) > KEY_LIMIT:
        raise DiskError("KeyTooLongError", f"a key has at most {KEY_LIMIT} bytes of UTF-8, this one has {len(raw)}")
    if b"\0" in raw:
        raise DiskError("InvalidKey", f"the key {key!r} holds a NUL character")
    for segment in raw.removesuffix(b"/").split(b"/"):
        if segment in (b"", b".", b".."):
            raise DiskError(
                "InvalidKey",
                f"the key {key!r} is no path below a disk: leave out empty, '.' and '..' segments and a '/' in front",
            )
        if len(segment) > SEGMENT_LIMIT:
            raise DiskError(
                "KeyTooLongError", f"a segment of a key has at most {SEGMENT_LIMIT} bytes of UTF-8, not {len(segment)}"
            )


def is_key(key: str) -> bool:
    """Whether a disk keeps this key."""
    try:
        check_key(key)
    except DiskError:
        return False
    return True


def check_about(about: About) -> None:
    """Raise InvalidArgument or MetadataTooLarge for what cannot be said of an object."""
    if about.mode is not None and not 0 <= about.mode <= _MODES:
        raise DiskError("InvalidArgument", "a mode is octal, from 0 to 7777")
    for name, number in (("uid", about.uid), ("gid", about.gid)):
        if number is not None and not 0 <= number < _IDS:
            raise DiskError("InvalidArgument", f"a {name} is a number from 0 to {_IDS - 1}")
    if not all(_HEADER.fullmatch(name) for name in about.metadata):
        raise DiskError("InvalidArgument", "a name of metadata is what a header's name may be: letters, digits, '-'")
    texts = [*about.metadata, *about.metadata.values(), about.content_type or ""]
    if any(_unfit(text) for text in texts):
        raise DiskError("InvalidArgument", "metadata and content types are text without control characters")
    if sum(len(text.encode()) for text in texts) > METADATA_LIMIT:
        raise DiskError("MetadataTooLarge", f"metadata and content type have {METADATA_LIMIT} bytes together at most")


def _unfit(text: str) -> bool:
    return any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text)
