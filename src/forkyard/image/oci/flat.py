"""An image on its way out, as one flattened layer with the documents that describe it. The same each time."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forkyard.errors import ConfigError, TooLarge
from forkyard.image.disks import opened
from forkyard.image.members import add_member, clean
from forkyard.image.oci.documents import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    config_document,
    digest_of,
    manifest_document,
)
from forkyard.sandbox import ImageProvider, Sandbox
from forkyard.values import MIB

_OF_EVERY_SANDBOX = ("dev", "proc", "sys")
ARCHIVE_LIMIT = 1024 * MIB
_PACKING = 4  # gzip's level: a third of the time of the usual one, a few per cent larger


@dataclass(frozen=True, slots=True)
class Flat:
    """An image as one layer in a file, with the documents that describe it."""

    layer: Path
    layer_blob: Descriptor
    config: bytes
    manifest: bytes

    @property
    def config_blob(self) -> Descriptor:
        """What the manifest calls the configuration by."""
        return Descriptor(digest_of(self.config), len(self.config), OCI_CONFIG)

    @property
    def manifest_blob(self) -> Descriptor:
        """What others call the image by."""
        return Descriptor(digest_of(self.manifest), len(self.manifest), OCI_MANIFEST)


async def flatten(store: ImageProvider, name: str, directory: Path) -> Flat:
    """An image as one layer, in a file of the directory. Raises ConfigError when there is no such image."""
    info = await store.image(name)
    if info is None:
        raise ConfigError(f"there is no image {name!r}; `forkyard image ls` lists them")
    path = directory / "layer.tar.gz"
    async with opened(store, name) as sandbox:
        with path.open("wb") as file:
            writer = _Writer(file)
            async for prefix, archive in trees(sandbox):
                await asyncio.shield(asyncio.to_thread(writer.add, prefix, archive))
            await asyncio.to_thread(writer.close)
    blob = Descriptor(writer.packed.digest, writer.packed.size, OCI_LAYER)
    config = config_document(info.config, (writer.plain.digest,), info.created)
    config_blob = Descriptor(digest_of(config), len(config), OCI_CONFIG)
    return Flat(path, blob, config, manifest_document(config_blob, (blob,)))


async def trees(sandbox: Sandbox, limit: int = ARCHIVE_LIMIT) -> AsyncIterator[tuple[str, bytes]]:
    """The whole disk as archives of bounded size, in order, each with the name its members are to be put under."""
    top = await sandbox.pull("/", exclude=["*/*"])
    yield "", top
    for name in _directories(top):
        if name not in _OF_EVERY_SANDBOX:
            async for tree in _tree(sandbox, name, limit):
                yield tree


async def _tree(sandbox: Sandbox, path: str, limit: int) -> AsyncIterator[tuple[str, bytes]]:
    """What is beneath a directory: at once, or where that is too much, directory by directory."""
    try:
        yield f"{path}/", await sandbox.pull(f"/{path}", max_bytes=limit)
    except TooLarge:
        shallow = await sandbox.pull(f"/{path}", exclude=["*/*"])
        yield f"{path}/", shallow
        for name in _directories(shallow):
            async for tree in _tree(sandbox, f"{path}/{name}", limit):
                yield tree


def _directories(archive: bytes) -> list[str]:
    with _reader(archive) as tar:
        return [info.name for info in tar if info.isdir()]


def _reader(archive: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", errors="surrogateescape")


class _Hashing(io.RawIOBase):
    """Passes bytes on, and knows their number and digest."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._hash.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)


class _Writer:
    """Writes members into a packed archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self.packed = _Hashing(file)
        self._gzip = gzip.GzipFile("", "wb", _PACKING, self.packed, mtime=0)
        self.plain = _Hashing(self._gzip)
        self._tar = tarfile.open(  # noqa: SIM115 - closed by `close`
            fileobj=self.plain, mode="w|", encoding="utf-8", errors="surrogateescape"
        )

    def add(self, prefix: str, archive: bytes) -> None:
        """Put the members of an archive under a name."""
        with _reader(archive) as tar:
            for info in tar:
                member = clean(info)
                member.name = prefix + member.name
                if member.islnk():
                    member.linkname = prefix + member.linkname
                if member.name in _OF_EVERY_SANDBOX:
                    member.mode, member.mtime = 0o755, 0  # of what is mounted there
                add_member(self._tar, member, tar.extractfile(info) if info.isreg() else None)
                self._tar.members.clear()  # type: ignore[attr-defined] # which would hold all of them

    def close(self) -> None:
        """Write the end."""
        self._tar.close()
        self._gzip.close()
