"""Trees of files on their way into a sandbox, from wherever a COPY, an ADD or a mount takes them."""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from forkyard.errors import SandboxError
from forkyard.image.context import Entry, Source
from forkyard.image.members import Member, clean
from forkyard.image.packed import UNREADABLE, unpacked
from forkyard.image.patterns import Ignore

Owner = tuple[int, int]

ROOT: Owner = (0, 0)
# The same archive for the same content, whenever it is made; late enough for programs that refuse 1970.
_TIME = 946684800  # 2000-01-01


@dataclass(frozen=True, slots=True)
class Tree:
    """A file called `name`, or the content of a directory; `mode` and `owner` are those of the directory itself.

    `members` have names relative to the directory; that of the file is "". A `settled` tree keeps its owners and
    modes whatever a COPY says.
    """

    name: str
    directory: bool
    members: Callable[[], Generator[Member, None, None]]
    mode: int = 0o755
    owner: Owner = ROOT
    settled: bool = False


def new_info(name: str, kind: bytes, mode: int, owner: Owner = ROOT) -> tarfile.TarInfo:
    """A member that is always the same for the same arguments."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, _TIME
    info.uid, info.gid = owner
    return info


def of_source(source: Source) -> Tree:
    """What of the build context one source of a COPY holds, owned by root."""

    def members() -> Generator[Member, None, None]:
        for entry in source.entries:
            if entry.name or not source.is_directory:
                yield from _member(entry)

    return Tree(source.name, source.is_directory, members, source.entries[0].mode)


def _member(entry: Entry) -> Generator[Member, None, None]:
    if entry.kind == "directory":
        yield new_info(entry.name, tarfile.DIRTYPE, entry.mode), None
    elif entry.kind == "link":
        info = new_info(entry.name, tarfile.SYMTYPE, 0o777)
        info.linkname = entry.content
        yield info, None
    else:
        yield from _checked_file(entry.path, entry.content, new_info(entry.name, tarfile.REGTYPE, entry.mode))


def _checked_file(path: Path, content: str, info: tarfile.TarInfo) -> Generator[Member, None, None]:
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            changed = hashlib.file_digest(file, "sha256").hexdigest() != content
        except OSError as error:
            raise SandboxError(f"{path} cannot be read: {error.strerror}") from error
        if changed:  # the key was made of other bytes: the result would be found under the wrong name
            raise SandboxError(f"{path} changed while the image was built: build again")
        info.size = file.seek(0, 2)
        file.seek(0)
        yield info, file


def of_text(name: str, data: bytes, mode: int = 0o644, owner: Owner = ROOT) -> Tree:
    """One file with this content."""

    def members() -> Generator[Member, None, None]:
        info = new_info("", tarfile.REGTYPE, mode, owner)
        info.size = len(data)
        yield info, io.BytesIO(data)

    return Tree(name, False, members)


def of_download(name: str, path: Path, content: str) -> Tree:
    """One file that was fetched, readable by its owner alone."""
    return Tree(name, False, lambda: _checked_file(path, content, new_info("", tarfile.REGTYPE, 0o600)))


def of_archive(path: Path, shown: str) -> Tree:
    """What a tar archive holds, packed or not, with its own owners; `shown` names it in messages."""

    def members() -> Generator[Member, None, None]:
        try:
            with path.open("rb") as file, unpacked(file) as stream:
                yield from _read(stream, shown)
        except UNREADABLE as error:
            raise SandboxError(f"{shown} cannot be unpacked: {error}") from error

    return Tree("", True, members, settled=True)


def of_pulled(archive: bytes, name: str, top: tarfile.TarInfo | None, exclude: Ignore) -> Tree:
    """What was pulled out of a sandbox, with its owners; `top` is the directory itself, or None for one file."""

    def members() -> Generator[Member, None, None]:
        if exclude.patterns and top is not None:
            yield from _kept_of(archive, name, exclude)
            return
        for info, content in _read(io.BytesIO(archive), name):
            if top is None:
                info.name = ""
            yield info, content

    if top is None:
        return Tree(name, False, members)
    return Tree(name, True, members, top.mode, (top.uid, top.gid))


def _kept_of(archive: bytes, shown: str, exclude: Ignore) -> Generator[Member, None, None]:
    """The members of an archive that are not excluded; a hard link to one that is becomes a file of its own."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as tar:
        kept = exclude.kept_of(tar.getnames())
        for info, content in _read(io.BytesIO(archive), shown):
            if info.name not in kept:
                continue
            if info.islnk() and info.linkname not in kept:
                source = tar.getmember(info.linkname)
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", source.size
                content = tar.extractfile(source)
            yield info, content


def _read(stream: IO[bytes], shown: str) -> Generator[Member, None, None]:
    """The members of an archive but its root. Raises SandboxError for what cannot be read or have a place."""
    try:
        with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            for info in tar:
                member = clean(info)
                if member.ischr() or member.isblk():
                    raise SandboxError(f"{shown} holds the device {info.name!r}, which no image here can have")
                if member.name:
                    yield member, tar.extractfile(info) if member.isreg() else None
    except UNREADABLE as error:
        raise SandboxError(f"{shown} cannot be unpacked: {error}") from error


def directories(names: Sequence[str], owner: Owner) -> Generator[Member, None, None]:
    """New directories, each in the one before."""
    for depth in range(len(names)):
        yield new_info(posixpath.join(*names[: depth + 1]), tarfile.DIRTYPE, 0o755, owner), None
