"""Archives of artifacts, on the host: hostile bytes, looked at member by member before anything is made of them.

An artifact's archive is a tar whose members are named by their absolute path without the leading slash, so that all
of them lie at or beneath its root.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_BROKEN = (tarfile.TarError, ValueError, ArithmeticError, EOFError, LookupError, OSError)  # of odd headers
_ATTRIBUTE = "SCHILY.xattr.user."
_MODE = 0o777 | stat.S_ISVTX  # what is not trusted gains no rights by its mode


def check_root(root: str) -> None:
    """Raise RuntimeError for what cannot be an artifact's root."""
    if not root.startswith("/") or not root.strip("/") or ".." in root.split("/"):
        raise RuntimeError(f"artifact root {root!r} must be an absolute path below '/' with no '..'")


def renamed(archive: bytes, root: str, top: tarfile.TarInfo) -> bytes:
    """What was pulled from a directory or a file, under its absolute name; FIFOs are left out.

    `top` is the root's own entry. Raises RuntimeError when the bytes are no archive.
    """
    prefix = root.strip("/")
    with _Writer() as out:
        if top.isdir():
            out.add(top, prefix, b"")
        for member, content in _members(root, archive):
            if member.isfifo():
                continue
            name = f"{prefix}/{member.name}" if top.isdir() else prefix
            if member.islnk():
                member.linkname = f"{prefix}/{member.linkname}"
            out.add(member, name, content)
    return out.data


def moved(archive: bytes, root: str, to: str) -> bytes:
    """An artifact's archive with its root in another place. Raises RuntimeError when the bytes are no archive."""
    prefix = root.strip("/")
    with _Writer() as out:
        for member, content in _members(root, archive):
            if member.islnk():
                member.linkname = f"{to}{member.linkname.removeprefix(prefix)}"
            out.add(member, f"{to}{member.name.removeprefix(prefix)}", content)
    return out.data


def count_entries(root: str, archive: bytes) -> tuple[int, bool]:
    """How many entries an artifact's archive holds, and whether its root is a directory."""
    entries = [member.isdir() for member, _ in _members(root, archive)]
    return len(entries), bool(entries) and entries[0]


def only_entry(root: str, archive: bytes) -> tarfile.TarInfo | None:
    """The one entry of an archive that was to hold one, None when it is empty."""
    return next((member for member, _ in _members(root, archive)), None)


def checked(collected: Mapping[str, bytes | None]) -> bytes:
    """All archives as one, to be unpacked at "/". Raises RuntimeError for the first thing that must not be restored."""
    return _joined(collected, None)


def cleaned(collected: Mapping[str, bytes | None]) -> tuple[bytes, list[str]]:
    """All archives as one, without what must not be restored, and one sentence for each thing left out."""
    complaints: list[str] = []
    return _joined(collected, complaints), complaints


def _joined(collected: Mapping[str, bytes | None], complaints: list[str] | None) -> bytes:
    for root in collected:
        check_root(root)
    with _Writer() as out:
        for root, archive in sorted(collected.items()):
            if archive is None:
                continue
            looked = _Look(root)
            for member, content in _members(root, archive):
                complaint = looked.at(member)
                if complaint is None:
                    out.add(member, member.name.strip("/"), content)
                elif complaints is None:
                    raise RuntimeError(complaint)
                else:
                    complaints.append(complaint)
    return out.data


@dataclass(slots=True)
class _Look:
    """What was seen so far of the archive of one root."""

    root: str
    seen: dict[str, bytes] = field(default_factory=dict)  # name to type
    _ways: dict[str, str] = field(default_factory=dict)  # directory to what is wrong with the way there, "" for nothing

    def at(self, member: tarfile.TarInfo) -> str | None:
        """Why a member must not be restored, None when it may."""
        name, prefix = member.name.rstrip("/"), self.root.strip("/")
        complaint = self._place(name, prefix) or self._kind(member, name, prefix)
        if name not in self.seen:
            self.seen[name] = member.type if complaint is None else tarfile.SYMTYPE if member.issym() else b""
            if self.seen[name] != tarfile.DIRTYPE and name in self._ways:
                self._ways.clear()
        return complaint

    def _place(self, name: str, prefix: str) -> str | None:
        parts = name.split("/")
        if not (name == prefix or name.startswith(f"{prefix}/")) or not {"..", ".", ""}.isdisjoint(parts):
            return f"artifact member {name!r} is outside declared root {self.root!r}"
        if wrong := self._way(name.rpartition("/")[0]):
            return f"artifact member {name!r} {wrong}"
        return f"duplicate artifact member {name!r}" if name in self.seen else None

    def _way(self, directory: str) -> str:
        """What is wrong with the way to a directory; each is looked at once, since trees may be thousands deep."""
        unknown: list[str] = []
        while directory and directory not in self._ways:
            unknown.append(directory)
            directory = directory.rpartition("/")[0]
        wrong = self._ways.get(directory, "")
        for each in reversed(unknown):
            kind = self.seen.get(each)
            if not wrong and kind not in (None, tarfile.DIRTYPE):
                wrong = "traverses a symlink" if kind == tarfile.SYMTYPE else "lies beneath what is no directory"
            self._ways[each] = wrong
        return wrong

    def _kind(self, member: tarfile.TarInfo, name: str, prefix: str) -> str | None:
        if member.issym() and name != prefix:
            safe = _stays_inside(name, member.linkname, prefix)
            return None if safe else f"artifact symlink {name!r} has unsafe target {member.linkname!r}"
        if member.islnk():
            known = self.seen.get(member.linkname) in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE)
            return None if known else f"artifact hard link {name!r} has unsafe target {member.linkname!r}"
        if member.isdir() or (member.isreg() and not member.issparse()):
            return None
        return f"artifact member {name!r} is a link or special file"


def _stays_inside(name: str, target: str, prefix: str) -> bool:
    """Whether a link leads to somewhere beneath the root, whatever the links on the way are.

    Its ".." may only stand in front, where they climb through real directories; what follows goes down, through links
    of which each stays inside.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    depth = name.count("/") - prefix.count("/") - 1  # of its directory, seen from the root
    return not target.startswith("/") and ".." not in parts[climbs:] and climbs <= depth


def _members(root: str, archive: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The members of an archive, each with its content. Raises RuntimeError where it is broken."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                yield member, content.read() if content else b""
    except _BROKEN as err:
        raise RuntimeError(f"unreadable artifact archive for {root!r}: {str(err)[:200]}") from None


class _Writer:
    """Writes a tar anew from members of others, so that what was looked at is what is unpacked."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.data = b""

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._tar.close()
        self.data = self._buffer.getvalue()

    def add(self, member: tarfile.TarInfo, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = member.type, member.linkname, member.mode & _MODE
        entry.uid, entry.gid, entry.mtime = member.uid, member.gid, int(member.mtime)
        entry.pax_headers = {key: value for key, value in member.pax_headers.items() if key.startswith(_ATTRIBUTE)}
        entry.size = len(content)
        self._tar.addfile(entry, io.BytesIO(content))
