"""One layer of an image: read once, given in pieces a push can take, and verified by the end of the last of them.

The pieces are the layer's own bytes, cut between members: every header is read for good where it can do no harm, inside
the sandbox. Whiteouts speak of lower layers only, wherever in the archive they stand. Where one comes after what it
would delete, the layer has to be read twice: for its whiteouts, and without them.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import IO, Any

from forkyard.image.members import Member
from forkyard.image.oci.blob import Blob
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.packed import UNREADABLE, unpacked
from forkyard.image.pieces import pieces
from forkyard.values import MIB, one_line

LAYER_LIMIT = 256 * 1024 * MIB
MOST_MEMBERS = 2_000_000
PIECE_BYTES = 16 * MIB  # one is unpacked while the next is made
_HEADER_LIMIT = MIB
_CHUNK = MIB // 4
_LONGEST_PATH = 4096  # for any kernel
_WHITEOUT, _OPAQUE_MARK = ".wh.", ".wh..wh..opq"
_END = bytes(2 * tarfile.BLOCKSIZE)
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class GuardedInfo(tarfile.TarInfo):
    """A header, refused before its extension is read into memory when that is larger than any name needs."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > _HEADER_LIMIT:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file of the old GNU kind, which layers do not have")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found


class Layer:
    """A layer's bytes, and what was found in them by the time they were read."""

    def __init__(self, blob: Blob, diff_id: str, what: str) -> None:
        self.blob, self.what = blob, what
        self._diff_id = diff_id
        self._forget()

    def _forget(self) -> None:
        self.devices = 0
        self._members = self._bytes = 0
        self._whiteouts: list[str] = []
        self._directories: dict[str, tarfile.TarInfo] = {}
        self._placed = _Placed()

    def archives(self) -> Generator[bytes, None, None]:
        """The layer as archives to be pushed one after the other, each of bounded size or one member.

        Raises ImageSourceError: it cannot be read, has other bytes than were promised, is hostile, or has a whiteout
        after what that would delete. Nothing of what was pushed may be seen then.
        """
        return self._read(None)

    def archives_carefully(self) -> Generator[bytes, None, None]:
        """The same of a blob that is whole, read twice: nothing is given before all of it was seen to be right."""
        for _ in self._read(()):
            pass
        whiteouts = tuple(self._whiteouts)
        yield from pieces(_named(whiteouts))
        yield from self._read(whiteouts)

    def _read(self, applied: Sequence[str] | None) -> Generator[bytes, None, None]:
        """One pass; whiteouts are left out when they were `applied` before, whichever they are."""
        self._forget()
        try:
            with self.blob.open() as raw, unpacked(raw) as stream:
                window = _Window(stream, self._diff_id)
                source: Any = window  # all that is needed of a file
                with tarfile.open(
                    fileobj=source, mode="r:", tarinfo=GuardedInfo, encoding="utf-8", errors="surrogateescape"
                ) as tar:
                    yield from self._cut(tar, window, leave_out=applied is not None)
        except UNREADABLE as error:
            said = one_line(str(error))[:500]
            raise ImageSourceError(f"{self.what} is no tar archive that can be read: {said}") from error

    def _cut(self, tar: tarfile.TarFile, window: _Window, leave_out: bool) -> Generator[bytes, None, None]:
        parts: list[bytes] = []
        taken = given = 0
        gap = False
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # which would hold all it saw
            starts, size = info.offset, tar.offset - info.offset
            if gap:
                window.cut(starts)  # the whiteout itself
            gap = self._add(info, leave_out) and leave_out
            if gap:
                self._refuse_global(tar)
                parts += window.cut(starts)
                continue
            if taken and taken + size > PIECE_BYTES:
                self._refuse_global(tar)
                yield b"".join([*parts, *window.cut(starts), _END])
                parts, taken, given = [], 0, given + 1
            taken += size
        if not gap:
            parts += window.cut(tar.offset)
        window.read_rest()
        if window.digest != self._diff_id:
            raise ImageSourceError(
                f"{self.what} was refused: unpacked it has the digest {window.digest}, not {self._diff_id}"
            )
        if taken:
            yield b"".join([*parts, _END])
        if given:  # one piece sets the times of its directories itself; after several they have to be set again
            yield from pieces((info, None) for info in self._directories.values())

    def _add(self, info: tarfile.TarInfo, known: bool) -> bool:
        """Take note of a member; whether it is a whiteout."""
        self._check(info)
        name = info.name.rstrip("/").rpartition("/")[2]
        if name.startswith(_WHITEOUT):
            self._whiteouts.append(info.name)
            if not known and self._placed.would_lose(info.name):
                whiteout = one_line(info.name)[:200]
                raise ImageSourceError(f"{self.what} has the whiteout {whiteout!r} after what that would delete")
            return True
        self.devices += info.ischr() or info.isblk()
        if info.isdir():
            self._directories[info.name] = info
        if not known:
            self._placed.add(info.name)
        return False

    def _check(self, info: tarfile.TarInfo) -> None:
        self._members += 1
        self._bytes += info.size
        if self._members > MOST_MEMBERS or self._bytes > LAYER_LIMIT:
            raise ValueError(f"it has more than {MOST_MEMBERS} members or {LAYER_LIMIT} bytes")
        targets = [info.name, info.linkname] if info.islnk() else [info.name]
        for name in targets:
            if name.startswith("/") or ".." in name.split("/"):
                raise ImageSourceError(f"{self.what} was refused: its member {one_line(name)[:200]!r} points outside")

    def _refuse_global(self, tar: tarfile.TarFile) -> None:
        """A header for all that follows cannot be cut off from it."""
        if globally := set(tar.pax_headers) - {"comment"}:
            raise ImageSourceError(
                f"{self.what} has global headers ({', '.join(sorted(globally)[:5])}), which are not supported"
            )


class _Window:
    """The unpacked bytes of a layer as a file: hashed as they come, held from where they were cut last.

    They stay in the chunks they came in, since copying them costs as much as their hash.
    """

    def __init__(self, stream: IO[bytes], like: str) -> None:
        self._stream = stream
        self._algorithm = like.partition(":")[0]
        self._hash = hashlib.new(self._algorithm)
        self._chunks: deque[tuple[int, bytes]] = deque()  # and where each begins
        self._at = self._end = 0

    def tell(self) -> int:
        return self._at

    def seek(self, where: int) -> None:
        self._at = where

    def read(self, size: int) -> bytes:
        self._fill(self._at + size)
        data = b"".join(self._between(self._at, self._at + size))
        self._at += len(data)
        return data

    def cut(self, end: int) -> list[bytes]:
        """What is held up to a place in the layer, which is held no longer."""
        self._fill(end)
        parts = []
        while self._chunks and self._chunks[0][0] < end:
            start, chunk = self._chunks.popleft()
            parts.append(chunk[: end - start])
            if end - start < len(chunk):
                self._chunks.appendleft((end, chunk[end - start :]))
        return parts

    def read_rest(self) -> None:
        """What follows the last member is part of the digest."""
        self._chunks.clear()
        while self._more():
            self._chunks.clear()

    def _fill(self, end: int) -> None:
        while self._end < end and self._more():
            pass

    def _more(self) -> bool:
        data = self._stream.read(_CHUNK)
        if not data:
            return False
        self._hash.update(data)
        self._chunks.append((self._end, data))
        self._end += len(data)
        if self._end > LAYER_LIMIT:
            raise ValueError(f"unpacked it has more than {LAYER_LIMIT} bytes")
        return True

    def _between(self, start: int, end: int) -> list[bytes]:
        parts: list[bytes] = []
        for begins, chunk in reversed(self._chunks):  # headers are read near the end of what is held
            if begins < end:
                parts.append(chunk[max(0, start - begins) : end - begins])
            if begins <= start:
                break
        return parts[::-1]

    @property
    def digest(self) -> str:
        return f"{self._algorithm}:{self._hash.hexdigest()}"


class _Placed:
    """What members of one layer were so far, by hashes: two names of one hash cost a second reading and no more."""

    def __init__(self) -> None:
        self._names: set[int] = set()
        self._folders: set[int] = set()

    def add(self, name: str) -> None:
        if len(name) > _LONGEST_PATH:  # which nobody can make
            return
        path = "/".join(_parts(name))
        self._names.add(hash(path))
        while path:
            path = path.rpartition("/")[0]
            if hash(path) in self._folders:
                break
            self._folders.add(hash(path))

    def would_lose(self, whiteout: str) -> bool:
        """Whether a whiteout that is applied now deletes any of them."""
        *folder, name = _parts(whiteout)
        if name == _OPAQUE_MARK:
            return hash("/".join(folder)) in self._folders
        path = hash("/".join([*folder, name.removeprefix(_WHITEOUT)]))
        return path in self._names or path in self._folders


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _named(names: tuple[str, ...]) -> Iterator[Member]:
    for name in names:
        yield tarfile.TarInfo(name), None
