"""A root file system in a tar archive, or a saved image, becomes an image."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Generator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.image.disks import opened
from forkyard.image.members import Member, clean
from forkyard.image.naming import check_name
from forkyard.image.oci.archive import Overrides, import_image_archive
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.packed import UNREADABLE, unpacked
from forkyard.image.pieces import push_members
from forkyard.image.problem import Problem
from forkyard.sandbox import ImageConfig, ImageInfo, ImageProvider
from forkyard.values import MIB, counted

_IMAGE_ARCHIVE = re.compile(r"blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}/layer\.tar|oci-layout")


@dataclass(frozen=True, slots=True)
class ImportedImage(ImageInfo):
    """The result of an import; `notes` says what of the archive was left out."""

    notes: tuple[str, ...] = ()


async def import_archive(store: ImageProvider, archive: Path, name: str, config: ImageConfig) -> ImportedImage:
    """Make what is in `archive` (tar, plain or compressed) the image `name`: a root file system, or a saved image.

    Owners, modes, links, times and extended attributes are kept. `config` is that of the root file system. A saved
    image, which is one of `docker save` or an OCI layout, keeps its own but for the variables, the directory and the
    user said. Raises ConfigError for a name that is not free to choose, and for an archive that cannot be read, is
    neither, or has members that point outside; nothing is left then.
    """
    check_name(name)
    try:
        return await _import_root(store, archive, name, config)
    except _ImageArchiveError:
        pass
    try:
        workdir = "" if config.workdir == "/" else config.workdir
        image = await import_image_archive(store, archive, name, Overrides(config.env, workdir, config.user))
    except ImageSourceError as error:
        raise ConfigError(str(error)) from error
    return ImportedImage(image.name, image.config, image.created, image.notes)


class _ImageArchiveError(Exception):
    """The archive is not a root file system but a saved image."""


async def _import_root(store: ImageProvider, archive: Path, name: str, config: ImageConfig) -> ImportedImage:
    reader = _Reader(archive)
    async with opened(store, "scratch") as sandbox:
        try:
            await push_members(sandbox, reader.members(), "/")
        except Problem as error:
            raise ConfigError(f"{archive}: {error}") from error
        except UNREADABLE as error:
            raise ConfigError(f"{archive}: this is not a tar archive that can be read: {error}") from error
        await sandbox.stop()
        image = await store.commit(sandbox, name, config)
    return ImportedImage(image.name, image.config, image.created, reader.notes())


def _open(archive: Path) -> BufferedReader:
    try:
        return archive.open("rb")
    except OSError as error:
        raise ConfigError(f"{archive} cannot be read: {error.strerror}") from None


@dataclass(slots=True)
class _Reader:
    """Reads an archive once from its beginning to its end, and counts what is left out."""

    path: Path
    devices: int = 0
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    files: int = 0

    def notes(self) -> tuple[str, ...]:
        if not self.devices:
            return ()
        return (f"{counted(self.devices, 'device node')} of {self.path} left out: a sandbox has its own /dev",)

    def members(self) -> Generator[Member, None, None]:
        """Every member, directories last: their modes are those of the end, whatever is put into them."""
        with (
            _open(self.path) as file,
            unpacked(file) as stream,
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

    def _kept(self, info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """The member as it goes into the image, or None for one that is left out or comes last."""
        kept = clean(info)
        if _IMAGE_ARCHIVE.fullmatch(kept.name):
            raise _ImageArchiveError
        if not kept.name:
            return None  # the root itself: a mode of 0700 there would shut everybody else out
        if kept.isdir():
            self.directories.pop(kept.name, None)
            self.directories[kept.name] = kept
            return None
        if kept.ischr() or kept.isblk():
            self.devices += 1
            return None
        self.files += 1
        return kept
