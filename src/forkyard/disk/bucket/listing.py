"""Pages of a bucket's keys."""

from __future__ import annotations

from forkyard.disk.bucket.headers import listed
from forkyard.disk.bucket.objects import Objects
from forkyard.disk.keys import is_key
from forkyard.disk.values import Listing


def list_page(objects: Objects, prefix: str, delimiter: str, after: str, limit: int) -> Listing:
    """A page, as the disk's `list` promises. Keys that no disk keeps, which others put there, are left out."""
    top = objects.bucket.prefix
    place = {"Bucket": objects.bucket.bucket, "Prefix": top + prefix} | ({"Delimiter": delimiter} if delimiter else {})
    last = after
    while True:
        start = {"StartAfter": top + last} if last else {}
        page = objects.client.list_objects_v2(**place, **start, MaxKeys=limit)
        found = {each["Key"].removeprefix(top): each for each in page.get("Contents", [])}
        prefixes = {each["Prefix"].removeprefix(top) for each in page.get("CommonPrefixes", [])}
        more = bool(page.get("IsTruncated"))
        end = max([*found, *prefixes], key=str.encode, default="")
        # A server may name the prefix again that a page began after.
        prefixes = {each for each in prefixes if is_key(each) and each != after and each.encode() > last.encode()}
        entries = tuple(listed(key, found[key]) for key in sorted(found, key=str.encode) if is_key(key))
        if entries or prefixes or not more:
            return Listing(entries, tuple(sorted(prefixes, key=str.encode)), end if more else None)
        last = end if end != last else f"{end}\U0010ffff"  # a prefix alone, and named again: go on behind its keys
