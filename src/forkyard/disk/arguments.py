"""What is asked of a disk, checked before anything happens; the same for every kind of disk."""

from __future__ import annotations

from forkyard.disk.errors import DiskError
from forkyard.disk.keys import check_about, check_key
from forkyard.disk.protocol import Body
from forkyard.disk.values import APPEND_LIMIT, LIST_LIMIT, About


def checked_about(key: str, about: About | None) -> About:
    """What is to be said of an object, with metadata names in lower case. InvalidKey, InvalidArgument and the like."""
    check_key(key)
    about = about or About()
    check_about(about)
    lower = {name.lower(): text for name, text in about.metadata.items()}
    return About(about.content_type, lower, about.mode, about.uid, about.gid)


def check_append(key: str, data: bytes) -> None:
    """EntityTooLarge; InvalidKey for a directory."""
    if key.endswith("/"):
        raise DiskError("InvalidKey", "a directory has no bytes to append to: leave out the '/' at the key's end")
    if len(data) > APPEND_LIMIT:
        raise DiskError("EntityTooLarge", f"one append has {APPEND_LIMIT} bytes at most, this one has {len(data)}")


async def check_empty(key: str, body: Body) -> None:
    """InvalidKey: bytes for a directory."""
    pieces = [body] if isinstance(body, bytes) else [piece async for piece in body]
    if any(pieces):
        raise DiskError("InvalidKey", f"{key!r} ends in '/', so it is a directory and has no bytes")


def check_upload_key(key: str, about: About | None) -> About:
    """As `checked_about`, and no directory."""
    if key.endswith("/"):
        raise DiskError("InvalidKey", "a directory has no bytes, and comes in no parts")
    return checked_about(key, about)


def check_listing(prefix: str, delimiter: str, after: str, limit: int) -> None:
    """InvalidArgument."""
    if delimiter not in ("", "/"):
        raise DiskError("InvalidArgument", "the only delimiter of keys is '/'")
    if not 1 <= limit <= LIST_LIMIT:
        raise DiskError("InvalidArgument", f"a page has 1 to {LIST_LIMIT} entries")
    try:
        prefix.encode(), after.encode()
    except UnicodeEncodeError:
        raise DiskError("InvalidArgument", "a prefix is Unicode text without half surrogate pairs") from None
