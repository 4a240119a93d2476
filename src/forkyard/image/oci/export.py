"""An image on its way out, as one flattened layer: into a file others load, or to a registry. The same each time."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forkyard.errors import ConfigError, SandboxError, SandboxLost
from forkyard.image.oci.documents import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    architecture,
    as_entry,
    config_document,
    digest_of,
    manifest_document,
)
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.settings import cache_directory
from forkyard.sandbox import ImageProvider, Sandbox, SandboxSpec
from forkyard.values import MIB

_OF_EVERY_SANDBOX = ("dev", "proc", "sys")
ARCHIVE_LIMIT = 1024 * MIB
_PACKING = 4  # gzip's level: a third of the time of the usual one, a few per cent larger


@dataclass(frozen=True, slots=True)
class _Flat:
    """An image as one layer in a file, with the documents that describe it."""

    layer: Path
    layer_blob: Descriptor
    config: bytes
    manifest: bytes

    @property
    def config_blob(self) -> Descriptor:
        return Descriptor(digest_of(self.config), len(self.config), OCI_CONFIG)

    @property
    def manifest_blob(self) -> Descriptor:
        return Descriptor(digest_of(self.manifest), len(self.manifest), OCI_MANIFEST)


async def export(store: ImageProvider, name: str, file: Path) -> str:
    """Write an image as an archive that is both an OCI layout and what `docker load` reads; the manifest's digest.

    Raises ConfigError when there is no such image, OSError when the file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=cache_directory()) as directory:
        flat = await _flatten(store, name, Path(directory))
        await asyncio.to_thread(_write_layout, flat, name, file)
    return flat.manifest_blob.digest


async def push(store: ImageProvider, name: str, to: str | None = None) -> str:
    """Put an image into a registry, under its own name or another; the manifest's digest.

    Raises ConfigError when there is no such image or the reference is wrong, ImageSourceError when the registry does
    not take it.
    """
    from forkyard.image.oci.registry import open_registry  # with the HTTP client, which most commands do without

    reference = parse_reference(to or name)
    if reference.digest is not None or reference.tag is None:
        raise ConfigError(f"{to or name}: an image is pushed under a tag, its digest follows from what it holds")
    with tempfile.TemporaryDirectory(dir=cache_directory()) as directory:
        flat = await _flatten(store, name, Path(directory))
        async with await open_registry(reference) as registry:
            await registry.upload(flat.layer_blob, lambda: _chunks(flat.layer))
            await registry.upload(flat.config_blob, lambda: _whole(flat.config))
            await registry.put_manifest(reference.tag, flat.manifest, OCI_MANIFEST)
    return flat.manifest_blob.digest


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, MIB):
            yield data


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _flatten(store: ImageProvider, name: str, directory: Path) -> _Flat:
    info = await store.image(name)
    if info is None:
        raise ConfigError(f"there is no image {name!r}; `forkyard image ls` lists them")
    sandbox = await store.create(SandboxSpec(image=name, workdir="/", user=""))
    path = directory / "layer.tar.gz"
    try:
        with path.open("wb") as file:
            writer = _Writer(file)
            async for prefix, archive in trees(sandbox):
                await asyncio.shield(asyncio.to_thread(writer.add, prefix, archive))
            await asyncio.to_thread(writer.close)
    finally:
        await sandbox.close()
    blob = Descriptor(writer.packed.digest, writer.packed.size, OCI_LAYER)
    config = config_document(info.config, (writer.plain.digest,), info.created)
    config_blob = Descriptor(digest_of(config), len(config), OCI_CONFIG)
    return _Flat(path, blob, config, manifest_document(config_blob, (blob,)))


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
    except SandboxLost:
        raise
    except SandboxError:
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
            fileobj=self.plain, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )

    def add(self, prefix: str, archive: bytes) -> None:
        """Put the members of an archive under a name."""
        with _reader(archive) as tar:
            for info in tar:
                member = tarfile.TarInfo(prefix + info.name)
                member.type, member.linkname, member.size = info.type, info.linkname, info.size
                member.mode, member.uid, member.gid, member.mtime = info.mode, info.uid, info.gid, int(info.mtime)
                if info.islnk():
                    member.linkname = prefix + info.linkname
                member.pax_headers = {k: v for k, v in info.pax_headers.items() if k.startswith("SCHILY.xattr.")}
                # Extended attributes need the one kind of header; names that are no text are best off in the other.
                self._tar.format = tarfile.PAX_FORMAT if member.pax_headers else tarfile.GNU_FORMAT
                if member.name in _OF_EVERY_SANDBOX:
                    member.mode, member.mtime = 0o755, 0  # of what is mounted there
                self._tar.addfile(member, tar.extractfile(info) if info.isreg() else None)
                self._tar.members.clear()  # type: ignore[attr-defined] # which would hold all of them

    def close(self) -> None:
        """Write the end."""
        self._tar.close()
        self._gzip.close()


def _write_layout(flat: _Flat, name: str, file: Path) -> None:
    """The archive, in the place of the file only when it is whole."""
    try:
        reference = parse_reference(name)
        full = f"{reference.registry}/{reference.repository}:{reference.tag}" if reference.tag else ""
        names = [reference.name] if full else []
    except ConfigError:  # a name of this store that no registry would take
        full, names = "", []
    notes = {"org.opencontainers.image.ref.name": full.rpartition(":")[2], "io.containerd.image.name": full}
    entry = {**as_entry(flat.manifest_blob), "platform": {"os": "linux", "architecture": architecture()}}
    if full:
        entry["annotations"] = notes
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    saved = {"Config": _place(flat.config_blob), "RepoTags": names, "Layers": [_place(flat.layer_blob)]}
    documents = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
        "manifest.json": json.dumps([saved]).encode(),
        _place(flat.config_blob): flat.config,
        _place(flat.manifest_blob): flat.manifest,
    }
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for place, data in documents.items():
                _add(tar, place, len(data), io.BytesIO(data))
            with flat.layer.open("rb") as layer:
                _add(tar, _place(flat.layer_blob), flat.layer_blob.size, layer)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink()
        raise


def _place(blob: Descriptor) -> str:
    return f"blobs/{blob.digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    tar.addfile(info, content)
