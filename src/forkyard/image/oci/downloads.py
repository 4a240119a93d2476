"""Blobs on their way: downloaded into a directory, resumed there after a cut, and removed once they are applied."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from forkyard.image.oci.documents import Descriptor
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.layer import Blob
from forkyard.image.oci.registry import Again, Registry
from forkyard.image.oci.settings import blobs_directory
from forkyard.values import MIB

_LOOK_AGAIN = 0.1


@asynccontextmanager
async def downloaded(registry: Registry, wanted: Descriptor) -> AsyncIterator[Blob]:
    """A blob, verified, for the length of the block; a block that is given up leaves it for another time.

    Raises ImageSourceError when the registry does not give it, or gives other bytes.
    """
    path = blobs_directory() / wanted.digest.replace(":", "-")
    descriptor = await _locked(path)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        download = _Download(file.fileno(), wanted)
        left_over = await asyncio.to_thread(download.look)
        try:
            await download.fill(registry)
            if download.digest != wanted.digest and left_over:  # the beginning was somebody's who failed
                download.empty()
                await download.fill(registry)
            if download.digest != wanted.digest:
                raise ImageSourceError(
                    f"{registry.where} gave bytes with the digest {download.digest} for {wanted.digest}: refused"
                )
        except ImageSourceError:
            if download.size in (0, wanted.size):  # nothing of it, or all and wrong: no use to anybody
                path.unlink()
            raise
        try:
            yield Blob(path, 0, wanted.size)
        except ImageSourceError:
            path.unlink()
            raise
        path.unlink()


async def _locked(path: Path) -> int:
    """The open file that only this download writes."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
            wait = 0.0  # somebody finished with it just now
        except BlockingIOError:
            wait = _LOOK_AGAIN
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        await asyncio.sleep(wait)


class _Download:
    """A file that is being filled, and the digest of what is in it."""

    def __init__(self, fd: int, wanted: Descriptor) -> None:
        self._fd, self._wanted = fd, wanted
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
        if os.fstat(self._fd).st_size > self._wanted.size:
            self.empty()
        while data := os.pread(self._fd, MIB, self.size):
            self._hash.update(data)
            self.size += len(data)
        return self.size > 0

    def empty(self) -> None:
        """Begin from the beginning."""
        os.ftruncate(self._fd, 0)
        self.empty_hash()

    async def fill(self, registry: Registry) -> None:
        """Get what is missing."""
        if self.size < self._wanted.size:
            await registry.patiently(f"the blob {self._wanted.digest}", lambda: self._attempt(registry))

    async def _attempt(self, registry: Registry) -> None:
        before = self.size
        try:
            async with registry.blob(self._wanted, self.size) as response:
                if response.status_code != 206 and self.size:  # it starts over, or has less than we think
                    self.empty()
                    before = 0
                if response.status_code != 416:
                    await self._take(response)
        except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.ReadTimeout) as error:
            raise Again(f"the connection was cut ({type(error).__name__})", progress=self.size > before) from error
        if self.size < self._wanted.size:
            raise Again("it gave less than it announced", progress=self.size > before)

    async def _take(self, response: httpx2.Response) -> None:
        async for chunk in response.aiter_raw():
            if self.size + len(chunk) > self._wanted.size:
                self.empty()
                raise ImageSourceError(
                    f"{response.url.host} gave more than {self._wanted.size} bytes for {self._wanted.digest}: refused"
                )
            view = memoryview(chunk)
            while view:
                count = os.pwrite(self._fd, view, self.size)
                self._hash.update(view[:count])
                self.size += count
                view = view[count:]
