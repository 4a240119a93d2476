"""A tar archive of tasks, unpacked once; what is in it is hostile until it was seen to be files within it."""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from forkyard.errors import ConfigError
from forkyard.task.registry.cache import cache_of, kept
from forkyard.values import MIB, printable

MOST_BYTES = 4096 * MIB
MOST_MEMBERS = 200_000


def unpack_archive(path: Path, most_bytes: int = MOST_BYTES) -> Path:
    """The directory with the files of an archive. Raises ConfigError for one that is broken, too large or hostile."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return kept(cache_of("archives") / digest, lambda directory: _unpack(path, directory, most_bytes))
    except OSError as err:
        raise ConfigError(f"import_failed: {path} cannot be unpacked: {err.strerror or err}") from None


def _unpack(path: Path, directory: Path, most_bytes: int) -> None:
    from forkyard.image.oci.layer import GuardedInfo  # with all that pulls images, which few runs need
    from forkyard.image.packed import UNREADABLE, unpacked

    try:
        with (
            path.open("rb") as file,
            unpacked(file) as plain,
            tarfile.open(fileobj=_Counted(plain, most_bytes), mode="r|", tarinfo=GuardedInfo) as archive,
        ):
            _place_all(archive, directory)
    except _Hostile as err:
        raise ConfigError(f"import_failed: {path} is refused: {printable(str(err))}") from None
    except UNREADABLE as err:
        raise ConfigError(f"import_failed: {path} is no archive that can be read: {printable(str(err))}") from None


class _Hostile(Exception):
    """The archive holds what no set of tasks has."""


class _Counted(io.RawIOBase):
    """A stream that ends the reading beyond a number of bytes, of whatever they are."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        super().__init__()
        self._stream, self._left, self._most = stream, most, most

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _Hostile(f"it unpacks to more than {self._most // MIB} MiB")
        return data


def _place_all(archive: tarfile.TarFile, directory: Path) -> None:
    kinds: dict[str, str] = {}
    for number, member in enumerate(archive):
        if number >= MOST_MEMBERS:
            raise _Hostile(f"it holds more than {MOST_MEMBERS} files")
        name = _name(member.name)
        if name == ".":
            continue
        kind = "directory" if member.isdir() else "link" if member.issym() else "file" if member.isreg() else "other"
        _check(member, name, kind, kinds)
        for parent in PurePosixPath(name).parents:  # seen as directories from here on, also when not listed
            kinds.setdefault(str(parent), "directory")
        kinds[name] = kind
        _place(archive, member, kind, directory / name)


def _name(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise _Hostile(f"{name!r} lies outside of it")
    return posixpath.normpath(name)


def _check(member: tarfile.TarInfo, name: str, kind: str, kinds: dict[str, str]) -> None:
    if kind == "other":
        raise _Hostile(f"{name!r} is neither a file nor a directory nor a symbolic link")
    if kinds.get(name, kind) != kind or (name in kinds and kind != "directory"):
        raise _Hostile(f"{name!r} is in it twice")
    for parent in PurePosixPath(name).parents:
        if kinds.get(str(parent), "directory") != "directory":
            raise _Hostile(f"{name!r} lies in {str(parent)!r}, which is no directory")
    if kind == "link":
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        if target.startswith(("/", "..")):
            raise _Hostile(f"{name!r} is a link that leads out of it")


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str, target: Path) -> None:
    if kind == "directory":
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        target.symlink_to(member.linkname)
        return
    source = archive.extractfile(member)
    with target.open("xb") as file:
        while source and (block := source.read(MIB)):
            file.write(block)
    target.chmod(0o755 if member.mode & 0o111 else 0o644)
