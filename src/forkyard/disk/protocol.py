"""What every disk can do, wherever it is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from forkyard.disk.values import About, Condition, DiskInfo, Listing, ObjectInfo, Part, Range, Upload

Body = bytes | AsyncIterator[bytes]


class Reading(Protocol):
    """An object that is being read: `info` is of the very bytes that come, from `start` to `stop` (excluded).

    Iterated once, in pieces; it ends by itself at the last one. Whoever stops before calls `close`.
    """

    info: ObjectInfo
    start: int
    stop: int

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def read(self) -> bytes:
        """All of it at once."""
        ...

    async def close(self) -> None:
        """Let go of the object; closing twice is fine."""
        ...


class Disk(Protocol):
    """A named store of objects. Every method raises DiskError and then has changed nothing.

    Keys follow `forkyard.disk.keys`, and are checked before anything is read or written. What a method acknowledged is
    not lost when this process is killed, and what it did not acknowledge is there as a whole or not at all.
    """

    info: DiskInfo

    async def put(
        self, key: str, body: Body, *, when: Condition | None = None, about: About | None = None
    ) -> ObjectInfo:
        """Write an object whole; readers see the old one or the new one. A key that ends in "/" makes a directory.

        An existing directory is not changed. EntityTooLarge, KeyConflict (a directory and a file of one name),
        PreconditionFailed; what raises in `body` passes.
        """
        ...

    async def append(self, key: str, data: bytes, *, about: About | None = None) -> ObjectInfo:
        """Add to an object's end, or create it (then `about` counts). At most `APPEND_LIMIT` bytes: EntityTooLarge.

        Appends to an object are one after the other, each whole. OperationAborted: there was no object when this one
        came, and another one made it meanwhile.
        """
        ...

    async def get(self, key: str, range: Range | None = None) -> Reading:
        """Start reading. NoSuchKey, InvalidRange."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """What an object is. NoSuchKey."""
        ...

    async def delete(self, key: str, when: Condition | None = None) -> bool:
        """Remove an object; whether there was one. With a condition, PreconditionFailed when it does not hold."""
        ...

    async def list(self, prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000) -> Listing:
        """A page of at most `limit` objects and prefixes (1 to 1000), in byte order, after a key or a listed prefix.

        `delimiter` is "" or "/": with it, keys that go on beyond a "/" are one common prefix. InvalidArgument.
        """
        ...

    async def begin_upload(self, key: str, *, about: About | None = None) -> Upload:
        """Begin an object that comes in parts."""
        ...

    async def put_part(self, key: str, upload_id: str, number: int, body: Body) -> Part:
        """Write a part (1 to 10,000), in the place of one of its number. NoSuchUpload, EntityTooLarge."""
        ...

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, when: Condition | None = None
    ) -> ObjectInfo:
        """Make the object of these parts. NoSuchUpload, InvalidPart, InvalidPartOrder, EntityTooSmall."""
        ...

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Give an upload up, with its parts. NoSuchUpload."""
        ...

    async def parts(self, key: str, upload_id: str) -> tuple[Part, ...]:
        """The parts that are there, by number. NoSuchUpload."""
        ...

    async def uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """The uploads under way, by key and age."""
        ...

    def directory(self, subdirectory: str = "") -> Path:
        """The directory of this machine that holds the objects, to be mounted into sandboxes.

        A subdirectory is given as a key without a "/" at its end. NotImplemented: kept in a bucket. NoSuchKey: there
        is no such directory, or a link is on the way to it.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections; nothing is lost by leaving it out."""
        ...
