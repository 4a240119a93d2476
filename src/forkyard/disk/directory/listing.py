"""Objects in the byte order of their keys, found by walking directories.

A directory counts as its name with a "/" behind it, as its keys do. Of a directory no more names are held than a few
thousand, and no more directories are open than one: guests make them as large and as deep as they like.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator

from forkyard.disk.directory.attributes import read_attributes
from forkyard.disk.directory.place import Place
from forkyard.disk.directory.tree import inner, top
from forkyard.disk.keys import KEY_LIMIT
from forkyard.disk.values import Listing, ObjectInfo

_BATCH = 4096


def list_page(place: Place, prefix: str, delimiter: str, after: str, limit: int) -> Listing:
    """A page, as the disk's `list` promises; the arguments are checked."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    last = ""
    walk = Walk(place, prefix.encode(), after.encode(), folded=bool(delimiter))
    for raw, folded in walk:
        key = raw.decode()
        info = None if folded else place.info(key)
        if info is None and not folded:  # removed meanwhile
            continue
        if len(objects) + len(prefixes) == limit:
            return Listing(tuple(objects), tuple(prefixes), last)
        last = key
        if info is None:
            prefixes.append(key)
        else:
            objects.append(info)
    return Listing(tuple(objects), tuple(prefixes))


class Walk:
    """The keys with a prefix and beyond `after`; folded, what goes on beyond a "/" is one key, told as such."""

    def __init__(self, place: Place, prefix: bytes, after: bytes, *, folded: bool) -> None:
        self._place = place
        self._prefix = prefix
        self._after = after
        self._folded = folded

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        stack = [self._names(b"")]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                continue
            key, directory = step
            if not directory:
                yield key, False
            elif self._folded and key.startswith(self._prefix) and key != self._prefix:
                if key != self._after and self._holds_objects(key):
                    yield key, True
            else:
                if key > self._after and key.startswith(self._prefix) and self._marked(key):
                    yield key, False
                stack.append(self._names(key))

    def _holds_objects(self, base: bytes) -> bool:
        return next(iter(Walk(self._place, base, self._after, folded=False)), None) is not None

    def _names(self, base: bytes) -> Iterator[tuple[bytes, bool]]:
        """What of a directory may matter, in order: whole keys, and whether each is a directory."""
        last = b""
        while True:
            names = (name for name in self._scan(base) if name > last)
            batch = heapq.nsmallest(_BATCH, names)
            for name in batch:
                yield base + name, name.endswith(b"/")
            if len(batch) < _BATCH:
                return
            last = batch[-1]

    def _scan(self, base: bytes) -> Iterator[bytes]:
        try:
            with top(self._place.objects) as root, inner(root, base.split(b"/")[:-1]) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    name = _key_name(entry)
                    if name and self._matters(base + name):
                        yield name
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # removed meanwhile; or closed to us, and then its objects cannot be read either

    def _matters(self, key: bytes) -> bool:
        if len(key) > KEY_LIMIT + key.endswith(b"/"):
            return False
        if not key.endswith(b"/"):
            return key > self._after and key.startswith(self._prefix)
        towards = key.startswith(self._prefix) or self._prefix.startswith(key)
        return towards and (key > self._after or self._after.startswith(key))

    def _marked(self, key: bytes) -> bool:
        try:
            with top(self._place.objects) as root, inner(root, key.split(b"/")[:-1]) as fd:
                return read_attributes(fd).marked
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False


def _key_name(entry: os.DirEntry[str]) -> bytes:
    """The name as keys are sorted; empty for what is no object: links, FIFOs, devices, names that are no UTF-8."""
    try:
        name = entry.name.encode()
    except UnicodeEncodeError:
        return b""
    if entry.is_dir(follow_symlinks=False):
        return name + b"/"
    return name if entry.is_file(follow_symlinks=False) else b""
