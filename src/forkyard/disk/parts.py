"""S3's rules for objects that come in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forkyard.disk.errors import DiskError
from forkyard.disk.values import PART_FLOOR, PARTS_LIMIT, Part

if TYPE_CHECKING:
    from hashlib import _Hash


def new_md5(data: bytes = b"") -> _Hash:
    """MD5 as ETags have it, which protects nothing."""
    return hashlib.md5(data, usedforsecurity=False)


def check_number(number: int) -> None:
    """InvalidArgument: not from 1 to 10,000."""
    if not 1 <= number <= PARTS_LIMIT:
        raise DiskError("InvalidArgument", f"a part's number is from 1 to {PARTS_LIMIT}")


def check_parts(wanted: Sequence[Part], there: Mapping[int, Part]) -> None:
    """Raise unless an object can be made of the wanted parts: in order, all there with these ETags, none too small."""
    if not wanted:
        raise DiskError("InvalidRequest", "an upload is completed with at least one part")
    numbers = [part.number for part in wanted]
    if any(later <= earlier for earlier, later in zip(numbers, numbers[1:], strict=False)):
        raise DiskError("InvalidPartOrder", "parts are named in ascending order, each once")
    for part in wanted:
        found = there.get(part.number)
        if found is None or found.etag != part.etag.strip('"'):
            raise DiskError("InvalidPart", f"there is no part {part.number} with this ETag: put it again")
    for part in wanted[:-1]:
        if there[part.number].size < PART_FLOOR:
            raise DiskError(
                "EntityTooSmall", f"part {part.number} is not the last, and has less than {PART_FLOOR} bytes"
            )


def etag_of_parts(parts: Sequence[Part]) -> str:
    """S3's ETag of an object that came in parts: the MD5 of their MD5s, and how many they were."""
    whole = new_md5()
    for part in parts:
        whole.update(bytes.fromhex(part.etag.strip('"')))
    return f"{whole.hexdigest()}-{len(parts)}"
