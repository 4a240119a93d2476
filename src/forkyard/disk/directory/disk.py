"""A disk whose objects are the plain files of a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import forkyard.disk.directory.uploads as uploads
from forkyard.disk.appends import Appends, Waiting
from forkyard.disk.arguments import check_append, check_empty, check_listing, check_upload_key, checked_about
from forkyard.disk.directory.appending import exists, write_group
from forkyard.disk.directory.branching import copy_objects
from forkyard.disk.directory.listing import list_page
from forkyard.disk.directory.place import Place, told
from forkyard.disk.directory.reading import FileReading, open_reading
from forkyard.disk.directory.tree import inner, segments_of, top
from forkyard.disk.directory.writing import Draft, publish, put_directory, remove
from forkyard.disk.errors import DiskError, no_such_key
from forkyard.disk.keys import check_key
from forkyard.disk.parts import check_number
from forkyard.disk.protocol import Body
from forkyard.disk.values import (
    OBJECT_LIMIT,
    PUT_LIMIT,
    About,
    Condition,
    DiskInfo,
    Listing,
    ObjectInfo,
    Part,
    Range,
    Upload,
)
from forkyard.disk.workers import Workers

T = TypeVar("T")
_GATHERED = 1 << 18


class DirectoryDisk:
    """The protocol over a `Place`. What it acknowledged outlives a power cut: files and directories are synced."""

    def __init__(self, info: DiskInfo, path: Path, new_name: Callable[[], str], workers: Workers) -> None:
        self.info = info
        self._place = Place(path, info.root, new_name)
        self._workers = workers
        self._appends = Appends(lambda key, group: self._run(key, write_group, self._place, key, group))

    async def put(
        self, key: str, body: Body, *, when: Condition | None = None, about: About | None = None
    ) -> ObjectInfo:
        """As the protocol says."""
        about = checked_about(key, about)
        if key.endswith("/"):
            await check_empty(key, body)
            return await self._run(key, put_directory, self._place, key, about, when)
        if isinstance(body, bytes):
            return await self._run(key, _put_whole, self._place, key, body, about, when)
        return await self._drafted(key, body, PUT_LIMIT, lambda draft: publish(self._place, draft, key, about, when))

    async def append(self, key: str, data: bytes, *, about: About | None = None) -> ObjectInfo:
        """As the protocol says."""
        about = checked_about(key, about)
        check_append(key, data)
        with told(key):
            existed = exists(self._place, key)  # here and now: others may make it while this one waits
        return await self._appends.append(key, Waiting(data, about, existed))

    async def get(self, key: str, range: Range | None = None) -> FileReading:
        """As the protocol says."""
        check_key(key)
        return await self._run(key, open_reading, self._place, key, range, self._workers)

    async def head(self, key: str) -> ObjectInfo:
        """As the protocol says."""
        check_key(key)
        info = await self._run(key, self._place.info, key)
        if info is None:
            raise no_such_key(key)
        return info

    async def delete(self, key: str, when: Condition | None = None) -> bool:
        """As the protocol says."""
        check_key(key)
        return await self._run(key, remove, self._place, key, when)

    async def list(self, prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000) -> Listing:
        """As the protocol says."""
        check_listing(prefix, delimiter, after, limit)
        return await self._run(prefix, list_page, self._place, prefix, delimiter, after, limit)

    async def begin_upload(self, key: str, *, about: About | None = None) -> Upload:
        """As the protocol says."""
        about = check_upload_key(key, about)
        return await self._run(key, uploads.begin, self._place, key, about)

    async def put_part(self, key: str, upload_id: str, number: int, body: Body) -> Part:
        """As the protocol says."""
        check_key(key)
        check_number(number)
        await self._run(key, uploads.check_upload, self._place, key, upload_id)
        publish_part = partial(uploads.put_part, self._place, key, upload_id, number)
        return await self._drafted(key, body, PUT_LIMIT, publish_part)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, when: Condition | None = None
    ) -> ObjectInfo:
        """As the protocol says."""
        check_key(key)
        return await self._drafted(
            key, b"", OBJECT_LIMIT, lambda draft: uploads.complete(self._place, key, upload_id, parts, draft, when)
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """As the protocol says."""
        check_key(key)
        await self._run(key, uploads.abort, self._place, key, upload_id)

    async def parts(self, key: str, upload_id: str) -> tuple[Part, ...]:
        """As the protocol says."""
        check_key(key)
        return await self._run(key, uploads.found_parts, self._place, key, upload_id)

    async def uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """As the protocol says."""
        return await self._run(prefix, uploads.all_uploads, self._place, prefix)

    def directory(self, subdirectory: str = "") -> Path:
        """As the protocol says. A guest may put a link in its place afterwards: open it without following any."""
        if not subdirectory:
            return self._place.objects
        check_key(subdirectory)
        try:
            with top(self._place.objects) as root, inner(root, segments_of(subdirectory)):
                return self._place.objects / subdirectory
        except (FileNotFoundError, NotADirectoryError):
            raise DiskError("NoSuchKey", f"there is no directory {subdirectory!r} on this disk") from None

    def copy_to(self, draft: Path) -> None:
        """Make a branch's directory with a copy of every object."""
        with told(self.info.name):
            draft.mkdir(parents=True)
            copy_objects(self._place, draft / "objects")

    async def close(self) -> None:
        """Finish the appends that came, and write down what is known of files."""
        await self._appends.close()
        await self._workers.run(self._place.hashes.close)

    async def _run(self, key: str, call: Callable[..., T], *args: object) -> T:
        with told(key):
            return await self._workers.run(call, *args)

    async def _drafted(self, key: str, body: Body, limit: int, use: Callable[[Draft], T]) -> T:
        """Write a body into a draft and use it; whatever happens, no draft is left."""
        draft = Draft(self._place, limit)
        try:
            await self._run(key, draft.open)
            if isinstance(body, bytes):
                await self._run(key, draft.write, body)
            else:
                gathered = bytearray()
                async for piece in body:
                    gathered += piece
                    if len(gathered) >= _GATHERED:
                        await self._run(key, draft.write, bytes(gathered))
                        gathered.clear()
                await self._run(key, draft.write, bytes(gathered))
            return await self._run(key, use, draft)
        finally:
            await self._workers.run(draft.discard)


def _put_whole(place: Place, key: str, body: bytes, about: About, when: Condition | None) -> ObjectInfo:
    draft = Draft(place)
    try:
        draft.open()
        draft.write(body)
        return publish(place, draft, key, about, when)
    finally:
        draft.discard()
