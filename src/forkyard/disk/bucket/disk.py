"""A disk whose objects are those of an S3 bucket."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from forkyard.disk.appends import Appends, Waiting
from forkyard.disk.arguments import check_append, check_empty, check_listing, check_upload_key, checked_about
from forkyard.disk.bucket.appending import write_group
from forkyard.disk.bucket.client import told
from forkyard.disk.bucket.headers import as_arguments
from forkyard.disk.bucket.listing import list_page
from forkyard.disk.bucket.objects import Objects
from forkyard.disk.bucket.reading import BucketReading
from forkyard.disk.errors import DiskError
from forkyard.disk.keys import check_key
from forkyard.disk.parts import check_number, check_parts
from forkyard.disk.protocol import Body
from forkyard.disk.values import (
    PUT_LIMIT,
    About,
    Bucket,
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
_IN_MEMORY = 8 << 20
_LONGEST_ID = 1024


class BucketDisk:
    """The protocol over a bucket, which makes puts whole and keeps them.

    An append reads the object, and puts it back longer if nobody has changed it meanwhile: a bucket has no other.
    So it costs what the object is long, and objects over 256 MiB take none.
    """

    def __init__(self, info: DiskInfo, bucket: Bucket, workers: Workers) -> None:
        self.info = info
        self._bucket = bucket
        self._workers = workers
        self._objects = Objects(bucket)
        self._appends = Appends(lambda key, group: self._run(key, write_group, self._objects, key, group))

    async def put(
        self, key: str, body: Body, *, when: Condition | None = None, about: About | None = None
    ) -> ObjectInfo:
        """As the protocol says."""
        about = checked_about(key, about)
        if key.endswith("/"):
            await check_empty(key, body)
            body = b""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            await self._gather(file, body)
            return await self._run(key, self._objects.put, key, file, about, when)

    async def append(self, key: str, data: bytes, *, about: About | None = None) -> ObjectInfo:
        """As the protocol says."""
        about = checked_about(key, about)
        check_append(key, data)
        existed = await self._run(key, self._objects.find, key) is not None
        return await self._appends.append(key, Waiting(data, about, existed))

    async def get(self, key: str, range: Range | None = None) -> BucketReading:
        """As the protocol says."""
        check_key(key)
        answer, info, start, stop = await self._run(key, self._objects.get, key, range)
        return BucketReading(info, start, stop, answer["Body"], lambda call, *args: self._run(key, call, *args))

    async def head(self, key: str) -> ObjectInfo:
        """As the protocol says."""
        check_key(key)
        return await self._run(key, self._objects.head, key)

    async def delete(self, key: str, when: Condition | None = None) -> bool:
        """As the protocol says."""
        check_key(key)
        return await self._run(key, self._objects.delete, key, when)

    async def list(self, prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000) -> Listing:
        """As the protocol says; what is said of objects beside size, ETag and time is for `head`."""
        check_listing(prefix, delimiter, after, limit)
        return await self._run("", list_page, self._objects, prefix, delimiter, after, limit)

    async def begin_upload(self, key: str, *, about: About | None = None) -> Upload:
        """As the protocol says."""
        about = check_upload_key(key, about)
        answer = await self._run(
            key, self._objects.client.create_multipart_upload, **self._objects.at(key), **as_arguments(about)
        )
        for upload in await self.uploads(key):
            if upload.id == answer["UploadId"]:
                return upload
        raise DiskError("ServiceUnavailable", f"the bucket {self._bucket.bucket!r} does not know an upload it began")

    async def put_part(self, key: str, upload_id: str, number: int, body: Body) -> Part:
        """As the protocol says."""
        check_key(key)
        check_number(number)
        _check_id(upload_id)
        # Asked first, so that nobody sends a part for nothing.
        await self._run(key, self._objects.call, "list_parts", key, UploadId=upload_id, MaxParts=1)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            await self._gather(file, body)
            size = file.tell()
            file.seek(0)
            which = {"UploadId": upload_id, "PartNumber": number, "Body": file, "ContentLength": size}
            answer = await self._run(key, self._objects.call, "upload_part", key, **which)
        return Part(number, str(answer["ETag"]).strip('"'), size)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, when: Condition | None = None
    ) -> ObjectInfo:
        """As the protocol says."""
        check_parts(parts, {part.number: part for part in await self.parts(key, upload_id)})
        named = [{"PartNumber": part.number, "ETag": f'"{part.etag.strip(chr(34))}"'} for part in parts]
        only = await self._run(key, self._objects.only_if, key, when)
        which = {"UploadId": upload_id, "MultipartUpload": {"Parts": named}, **only}
        await self._run(key, self._objects.call, "complete_multipart_upload", key, **which)
        return await self.head(key)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """As the protocol says."""
        check_key(key)
        _check_id(upload_id)
        await self._run(key, self._objects.call, "abort_multipart_upload", key, UploadId=upload_id)

    async def parts(self, key: str, upload_id: str) -> tuple[Part, ...]:
        """As the protocol says."""
        check_key(key)
        _check_id(upload_id)

        def pages() -> tuple[Part, ...]:
            found = self._objects.client.get_paginator("list_parts").paginate(
                **self._objects.at(key), UploadId=upload_id
            )
            return tuple(
                Part(each["PartNumber"], each["ETag"].strip('"'), each["Size"], each["LastModified"].timestamp())
                for page in found
                for each in page.get("Parts", [])
            )

        return await self._run(key, pages)

    async def uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """As the protocol says."""
        top = self._bucket.prefix

        def pages() -> tuple[Upload, ...]:
            pager = self._objects.client.get_paginator("list_multipart_uploads")
            found = pager.paginate(Bucket=self._bucket.bucket, Prefix=top + prefix)
            return tuple(
                Upload(each["UploadId"], each["Key"].removeprefix(top), each["Initiated"].timestamp())
                for page in found
                for each in page.get("Uploads", [])
            )

        return tuple(sorted(await self._run(prefix, pages), key=lambda each: (each.key.encode(), each.created)))

    def directory(self, subdirectory: str = "") -> Path:
        """As the protocol says: NotImplemented."""
        raise DiskError(
            "NotImplemented",
            f"the disk {self.info.name!r} is kept in a bucket, and a sandbox can mount only one that is kept in a "
            "directory: make one, and copy the objects",
        )

    async def close(self) -> None:
        """Finish the appends that came, and end connections."""
        await self._appends.close()
        await self._workers.run(self._objects.close)

    async def _run(self, key: str, call: Callable[..., T], *args: Any, **more: Any) -> T:
        def named() -> T:
            with told(self._bucket, key):
                return call(*args, **more)

        return await self._workers.run(named)

    async def _gather(self, file: IO[bytes], body: Body) -> None:
        """A bucket wants to know how long a body is before it comes."""
        pieces = _one(body) if isinstance(body, bytes) else body
        size = 0
        async for piece in pieces:
            size += len(piece)
            if size > PUT_LIMIT:
                raise DiskError(
                    "EntityTooLarge", f"an object, or a part, written in one piece has {PUT_LIMIT} bytes at most"
                )
            await self._workers.run(file.write, piece)


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _check_id(upload_id: str) -> None:
    """What no server gives out is not sent to one."""
    if not (upload_id.isascii() and upload_id.isprintable() and 0 < len(upload_id) <= _LONGEST_ID):
        raise DiskError("NoSuchUpload", "there is no such upload: an upload's id is short and printable")
