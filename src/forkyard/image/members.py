"""The members of tar archives: those of others cleaned, ours written."""

from __future__ import annotations

import tarfile
from collections.abc import Generator, Iterable
from typing import IO

from forkyard.image.problem import Problem

Member = tuple[tarfile.TarInfo, IO[bytes] | None]
"""A member and, for a regular file, where its bytes are read from."""

_ATTRIBUTE = "SCHILY.xattr."
_LATEST = 1 << 33  # seconds; no file system holds more


def clean(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member with what a disk can hold of it and nothing else; the root itself has the name "".

    That is its kind, mode, owner, time and extended attributes, and where a link leads. Raises Problem when its name,
    or that of the file a hard link is, points outside.
    """
    kept = tarfile.TarInfo(_inside(info.name))
    kept.type, kept.mode, kept.uid, kept.gid = info.type, info.mode & 0o7777, info.uid, info.gid
    kept.mtime = int(info.mtime) if 0 <= info.mtime < _LATEST else 0
    if info.issym():
        kept.linkname = info.linkname
    elif info.islnk():
        kept.linkname = _inside(info.linkname)
    elif info.isfile():
        kept.type, kept.size = tarfile.REGTYPE, info.size
    kept.pax_headers = attributes(info)
    return kept


def attributes(info: tarfile.TarInfo) -> dict[str, str]:
    """The extended attributes of a member, by the names that its headers have."""
    return {name: value for name, value in info.pax_headers.items() if name.startswith(_ATTRIBUTE)}


def _inside(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Problem(f"the member {name!r} points outside of the archive: make it without '..'")
    return "/".join(parts)


def add_member(archive: tarfile.TarFile, info: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
    """Write a member in the one of two formats that has a place for all of it.

    GNU headers hold names, links and owners of any size, and bytes that are not UTF-8; extended attributes need
    those of PAX.
    """
    archive.format = tarfile.PAX_FORMAT if attributes(info) else tarfile.GNU_FORMAT
    archive.addfile(info, content)


def chain(*parts: Iterable[Member]) -> Generator[Member, None, None]:
    """The members of one part after those of another."""
    for part in parts:
        yield from part
