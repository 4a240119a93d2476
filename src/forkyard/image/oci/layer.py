"""One layer of an image: looked through once before anything is applied, then given in pieces a push can take.

The first look verifies the digest of the unpacked bytes and finds what deletes: whiteouts speak of lower layers only,
wherever in the archive they stand, so they are applied first and cut out of the rest. The rest goes on as it is, cut
between members, and every header in it is read where it can do no harm: inside the sandbox.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from forkyard.image.members import Member
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.packed import UNREADABLE, unpacked
from forkyard.image.pieces import PIECE_BYTES, pieces
from forkyard.values import MIB, one_line

LAYER_LIMIT = 256 * 1024 * MIB
MOST_MEMBERS = 2_000_000
_HEADER_LIMIT = MIB
_WHITEOUT = ".wh."
_END = bytes(2 * tarfile.BLOCKSIZE)
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
Segment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in a file of the host: all of it, or a part."""

    path: Path
    offset: int
    size: int

    def open(self) -> io.BufferedReader:
        """Read from the beginning."""
        return io.BufferedReader(_Part(self), MIB)


class _Part(io.RawIOBase):
    """A part of a file, and no byte of what is around it."""

    def __init__(self, blob: Blob) -> None:
        self._file = blob.path.open("rb", buffering=0)
        self._file.seek(blob.offset)
        self._left = blob.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: self._left]
        count = self._file.readinto(view) if view.nbytes else 0
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that was looked through: where its pieces are, and what the first of them deletes."""

    blob: Blob
    whiteouts: tuple[str, ...]
    pieces: tuple[tuple[Segment, ...], ...]
    directories: tuple[tarfile.TarInfo, ...]
    devices: int


class GuardedInfo(tarfile.TarInfo):
    """A header, refused before its extension is read into memory when that is larger than any name needs."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > _HEADER_LIMIT:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file of the old GNU kind, which layers do not have")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found


def scan(blob: Blob, diff_id: str, what: str) -> Layer:
    """Look a layer through. ImageSourceError: it cannot be read, has other bytes than were promised, or is hostile."""
    try:
        with blob.open() as raw, unpacked(raw) as stream:
            hashing = _Hashing(stream, diff_id)
            source: Any = hashing  # all that is needed of a file is `read`
            with tarfile.open(
                fileobj=source, mode="r|", tarinfo=GuardedInfo, encoding="utf-8", errors="surrogateescape"
            ) as tar:
                found = _Scan(what)
                while (info := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # which would hold all it saw
                    found.add(info, tar.offset)  # where the next one begins
                globally = set(tar.pax_headers) - {"comment"}
            while hashing.read(MIB):  # what follows the last member is part of the digest
                pass
    except UNREADABLE as error:
        raise ImageSourceError(f"{what} is no tar archive that can be read: {one_line(str(error))[:500]}") from error
    if hashing.digest != diff_id:
        raise ImageSourceError(f"{what} was refused: unpacked it has the digest {hashing.digest}, not {diff_id}")
    layer = found.layer(blob)
    if globally and (len(layer.pieces) > 1 or layer.whiteouts):
        raise ImageSourceError(
            f"{what} has global headers ({', '.join(sorted(globally)[:5])}), which are not supported"
        )
    return layer


class _Hashing:
    """Counts and hashes what is read of a layer."""

    def __init__(self, stream: IO[bytes], like: str) -> None:
        self._stream = stream
        self._algorithm = like.partition(":")[0]
        self._hash = hashlib.new(self._algorithm)
        self._total = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self._total += len(data)
        if self._total > LAYER_LIMIT:
            raise ValueError(f"unpacked it has more than {LAYER_LIMIT} bytes")
        return data

    @property
    def digest(self) -> str:
        return f"{self._algorithm}:{self._hash.hexdigest()}"


@dataclass(slots=True)
class _Scan:
    """What was found so far."""

    what: str
    members: int = 0
    devices: int = 0
    size: int = 0
    whiteouts: list[str] = field(default_factory=list)
    done: list[tuple[Segment, ...]] = field(default_factory=list)
    piece: list[Segment] = field(default_factory=list)
    taken: int = 0
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict)

    def add(self, info: tarfile.TarInfo, end: int) -> None:
        self._check(info)
        name = info.name.rstrip("/").rpartition("/")[2]
        if name.startswith(_WHITEOUT):
            self.whiteouts.append(info.name)
            return
        self.devices += info.ischr() or info.isblk()
        if info.isdir():
            self.directories[info.name] = info
        self._take(info.offset, end)

    def _check(self, info: tarfile.TarInfo) -> None:
        self.members += 1
        self.size += info.size
        if self.members > MOST_MEMBERS or self.size > LAYER_LIMIT:
            raise ValueError(f"it has more than {MOST_MEMBERS} members or {LAYER_LIMIT} bytes")
        targets = [info.name, info.linkname] if info.islnk() else [info.name]
        for name in targets:
            if name.startswith("/") or ".." in name.split("/"):
                raise ImageSourceError(f"{self.what} was refused: its member {one_line(name)[:200]!r} points outside")

    def _take(self, start: int, end: int) -> None:
        if self.piece and self.taken + end - start > PIECE_BYTES:
            self.done.append(tuple(self.piece))
            self.piece, self.taken = [], 0
        self.taken += end - start
        if self.piece and self.piece[-1][1] == start:
            self.piece[-1] = (self.piece[-1][0], end)
        else:
            self.piece.append((start, end))

    def layer(self, blob: Blob) -> Layer:
        made = (*self.done, tuple(self.piece)) if self.piece else tuple(self.done)
        # One piece sets the times of its directories itself; after several they have to be set again.
        again = tuple(self.directories.values()) if len(made) > 1 else ()
        return Layer(blob, tuple(self.whiteouts), made, again, self.devices)


def archives(layer: Layer) -> Generator[bytes, None, None]:
    """The layer as archives to be pushed one after the other, each of bounded size or one member."""
    yield from pieces(_named(layer.whiteouts))
    with layer.blob.open() as raw, unpacked(raw) as stream:
        at = 0
        for piece in layer.pieces:
            parts = []
            for start, end in piece:
                _skip(stream, start - at)
                parts.append(stream.read(end - start))
                at = end
            yield b"".join([*parts, _END])
    yield from pieces((info, None) for info in layer.directories)


def _named(names: tuple[str, ...]) -> Iterator[Member]:
    for name in names:
        yield tarfile.TarInfo(name), None


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0:
        count -= len(stream.read(min(count, MIB))) or count
