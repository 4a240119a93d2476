"""Blobs on their way: downloaded into a directory, resumed there after a cut, and removed once they are applied."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2

from forkyard.image.oci.blob import Arrival, Blob
from forkyard.image.oci.documents import Descriptor
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.registry import Again, Registry
from forkyard.image.oci.settings import blobs_directory
from forkyard.locks import locked
from forkyard.values import MIB

_LOOK_AGAIN = 0.1


@asynccontextmanager
async def downloaded(registry: Registry, wanted: Descriptor) -> AsyncIterator[Blob]:
    """A blob on its way, for the length of the block; a block that is given up leaves it for another time.

    `Blob.whole` raises ImageSourceError when the registry does not give it, or gives other bytes. Where an earlier
    download is gone on with, the block begins once it is whole: its beginning may be somebody's who failed.
    """
    path = blobs_directory() / wanted.digest.replace(":", "-")
    descriptor = await _locked(path)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        download = _Download(file.fileno(), wanted)
        left_over = await asyncio.to_thread(download.look)
        filling = asyncio.create_task(_fill(download, registry, left_over))
        try:
            if left_over:
                await asyncio.shield(filling)
            yield Blob(path, 0, wanted.size, download.arrival, filling)
        except ImageSourceError:
            if download.size in (0, wanted.size):  # nothing of it, or all and wrong: no use to anybody
                path.unlink()
            raise
        finally:
            filling.cancel()
            await asyncio.wait([filling])
            if not filling.cancelled():
                filling.exception()  # seen: who waits for the whole has it
        path.unlink()


async def _fill(download: _Download, registry: Registry, left_over: bool) -> None:
    wanted = download.wanted
    try:
        await download.fill(registry)
        if download.digest != wanted.digest and left_over:
            download.empty()
            await download.fill(registry)
        if download.digest != wanted.digest:
            raise ImageSourceError(
                f"{registry.where} gave bytes with the digest {download.digest} for {wanted.digest}: refused"
            )
    finally:
        download.arrival.end("the download ended")


async def _locked(path: Path) -> int:
    """The open file that only this download writes."""
    while True:
        with suppress(BlockingIOError):
            return locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        await asyncio.sleep(_LOOK_AGAIN)


class _Download:
    """A file that is being filled, and the digest of what is in it."""

    def __init__(self, fd: int, wanted: Descriptor) -> None:
        self._fd, self.wanted = fd, wanted
        self.arrival = Arrival()
        self._algorithm = wanted.digest.partition(":")[0]
        self.empty_hash()

    def empty_hash(self) -> None:
        self._hash = hashlib.new(self._algorithm)
        self.size = 0

    @property
    def digest(self) -> str:
        """The digest of what there is."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"

    def look(self) -> bool:
        """Take over what an earlier download left; whether there was anything."""
        if os.fstat(self._fd).st_size > self.wanted.size:
            self.empty()
        while data := os.pread(self._fd, MIB, self.size):
            self._hash.update(data)
            self.size += len(data)
        self.arrival.tell(self.size)
        return self.size > 0

    def empty(self) -> None:
        """Begin from the beginning. Whoever read of it meanwhile finds out by the digest of what he read."""
        os.ftruncate(self._fd, 0)
        self.empty_hash()
        self.arrival.tell(0)

    async def fill(self, registry: Registry) -> None:
        """Get what is missing."""
        if self.size < self.wanted.size:
            await registry.patiently(f"the blob {self.wanted.digest}", lambda: self._attempt(registry))

    async def _attempt(self, registry: Registry) -> None:
        before = self.size
        try:
            async with registry.blob(self.wanted, self.size) as response:
                if response.status_code != 206 and self.size:  # it starts over, or has less than we think
                    self.empty()
                    before = 0
                if response.status_code != 416:
                    await self._take(response)
        except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.ReadTimeout) as error:
            raise Again(f"the connection was cut ({type(error).__name__})", progress=self.size > before) from error
        if self.size < self.wanted.size:
            raise Again("it gave less than it announced", progress=self.size > before)

    async def _take(self, response: httpx2.Response) -> None:
        async for chunk in response.aiter_raw():
            if self.size + len(chunk) > self.wanted.size:
                self.empty()
                raise ImageSourceError(
                    f"{response.url.host} gave more than {self.wanted.size} bytes for {self.wanted.digest}: refused"
                )
            view = memoryview(chunk)
            while view:
                count = os.pwrite(self._fd, view, self.size)
                self._hash.update(view[:count])
                self.size += count
                view = view[count:]
            self.arrival.tell(self.size)
