"""A root file system in a tar archive, or a saved image, becomes an image."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from forkyard.errors import ConfigError
from forkyard.image.oci.archive import import_image_archive
from forkyard.image.oci.install import LAYER_PREFIX
from forkyard.image.oci.problem import ImageSourceError
from forkyard.image.pieces import Member, push_members
from forkyard.image.plan import BUILD_PREFIX, CACHE_PREFIX
from forkyard.sandbox import ImageConfig, ImageInfo, ImageProvider, SandboxSpec
from forkyard.values import MIB

_OWN_NAMES = frozenset({"scratch", "host"})
# Beginnings of files, and how the rest is read; None for what cannot be.
_FORMATS: tuple[tuple[bytes, str, Callable[..., Any] | None], ...] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bzip2", bz2.open),
    (b"\xfd7zXZ\x00", "xz", lzma.open),
    (b"\x28\xb5\x2f\xfd", "zstd", None),
    (b"PK\x03\x04", "zip", None),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_IMAGE_ARCHIVE = re.compile(r"blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}/layer\.tar|oci-layout")
_UNREADABLE = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class ImportedImage(ImageInfo):
    """The result of an import; `notes` says what of the archive was left out."""

    notes: tuple[str, ...] = ()


async def import_archive(store: ImageProvider, archive: Path, name: str, config: ImageConfig) -> ImportedImage:
    """Make what is in `archive` (tar, plain or compressed) the image `name`: a root file system, or a saved image.

    Owners, modes, links and times are kept. A saved image is one of `docker save` or an OCI layout; of its own
    configuration `config` replaces what it says. Raises ConfigError for a name that is not free to choose, and for an
    archive that cannot be read, is neither, or has members that point outside; nothing is left then.
    """
    check_name(name)
    try:
        return await _import_root(store, archive, name, config)
    except _ImageArchiveError:
        pass
    try:
        image = await import_image_archive(store, archive, name, config)
    except ImageSourceError as error:
        raise ConfigError(str(error)) from error
    return ImportedImage(image.name, image.config, image.created, image.notes)


class _ImageArchiveError(Exception):
    """The archive is not a root file system but a saved image."""


async def _import_root(store: ImageProvider, archive: Path, name: str, config: ImageConfig) -> ImportedImage:
    reader = _Reader(archive)
    sandbox = await store.create(SandboxSpec(image="scratch"))
    try:
        try:
            await push_members(sandbox, reader.members(), "/")
        except _UNREADABLE as error:
            raise ConfigError(f"{archive}: this is not a tar archive that can be read: {error}") from error
        await sandbox.stop()
        image = await store.commit(sandbox, name, config)
    finally:
        await sandbox.close()
    return ImportedImage(image.name, image.config, image.created, reader.notes())


def check_name(name: str) -> None:
    """Raises ConfigError for a name that no image may be given."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of an image: write it as a FROM would, for example debian:12")
    if name in _OWN_NAMES or name.startswith((BUILD_PREFIX, CACHE_PREFIX, LAYER_PREFIX)):
        raise ConfigError(f"{name!r} cannot be the name of an imported image: Forkyard makes images of that name")


@dataclass(slots=True)
class _Reader:
    """Reads an archive once from its beginning to its end, and counts what is left out."""

    path: Path
    skipped: int = 0
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    files: int = 0

    def notes(self) -> tuple[str, ...]:
        if not self.skipped:
            return ()
        return (f"{self.skipped} device nodes and pipes of {self.path} were left out: a sandbox has its own /dev",)

    def members(self) -> Generator[Member, None, None]:
        """Every member, directories last: their modes are those of the end, whatever is put into them."""
        with (
            self._open() as stream,
            tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar,
        ):
            for info in tar:
                member = self._kept(info)
                if member is not None:
                    yield member, tar.extractfile(info) if member.isreg() else None
            while stream.read(MIB):  # what follows the last member holds the checksum of a packed archive
                pass
        if not self.files and not self.directories:
            raise ConfigError(f"{self.path}: the archive is empty, and an image needs a root file system")
        for info in self.directories.values():
            yield info, None

    def _open(self) -> IO[bytes]:
        with self.path.open("rb") as file:
            start = file.read(8)
        for magic, name, opener in _FORMATS:
            if start.startswith(magic) and opener is None:
                raise ConfigError(f"{self.path}: {name} archives are not supported: unpack it and import a plain tar")
            if start.startswith(magic) and opener is not None:
                stream: IO[bytes] = opener(self.path, "rb")
                return stream
        return self.path.open("rb")

    def _kept(self, info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """The member as it goes into the image, or None for one that is left out or comes last."""
        name = self._inside(info.name)
        if _IMAGE_ARCHIVE.fullmatch(name):
            raise _ImageArchiveError
        if not name:
            return None  # the root itself: a mode of 0700 there would shut everybody else out
        kept = tarfile.TarInfo(name)
        kept.mode, kept.uid, kept.gid, kept.mtime = info.mode & 0o7777, info.uid, info.gid, _time(info)
        if info.isdir():
            kept.type = tarfile.DIRTYPE
            self.directories.pop(name, None)
            self.directories[name] = kept
            return None
        if info.issym():
            kept.type, kept.linkname = tarfile.SYMTYPE, info.linkname
        elif info.islnk():
            kept.type, kept.linkname = tarfile.LNKTYPE, self._inside(info.linkname)
        elif info.isfile():
            kept.size = info.size
        else:
            self.skipped += 1
            return None
        self.files += 1
        return kept

    def _inside(self, name: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ConfigError(f"{self.path}: the member {name!r} points outside of the archive: make it without '..'")
        return "/".join(parts)


def _time(info: tarfile.TarInfo) -> int:
    """A member's time, or 0 where an archive claims what no file system can hold."""
    return int(info.mtime) if 0 <= info.mtime < 1 << 33 else 0
