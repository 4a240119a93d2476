"""Archives on the host's side: made for a push, and what came out of a sandbox put into a host directory."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath

MAX_MEMBERS = 10_000
MAX_DEPTH = 64


def pack(directory: Path, prefix: str = "") -> bytes:
    """A tar of the files, directories and links under `directory`, owned by root, modes kept."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, prefix + path.relative_to(directory).as_posix(), recursive=False, filter=_owned_by_root)
    return buffer.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def all_but(name: str) -> list[str]:
    """What to exclude from a pull of a directory that is to give one of its entries, and nothing in that."""
    plain = [f"[{char}]" if char in "*?[" else char for char in name]
    patterns = ["*/*", "".join(plain) + "?*"]
    for position, char in enumerate(name):
        before = "".join(plain[:position])
        patterns += [f"{before}[!{char}]*", *([before] if before else [])]
    return patterns


def unpack_untrusted(data: bytes, directory: Path) -> list[str]:
    """Put the regular files and directories of a sandbox's archive under `directory`, which must be ours alone.

    Links, devices and names that point outside are left out, one sentence each in the result; a hard link to a file
    that was placed is made one here. Owners and modes are not taken over. An archive with more than 10,000 members is
    cut there, and so is one that is broken where it breaks.
    """
    skipped: list[str] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            _place_all(archive, directory, skipped)
    except (tarfile.TarError, ValueError, ArithmeticError, EOFError) as err:  # what the reader makes of odd headers
        skipped.append(f"the archive is broken, the rest is left out ({str(err)[:200]})")
    return skipped


def _place_all(archive: tarfile.TarFile, directory: Path, skipped: list[str]) -> None:
    for count, entry in enumerate(archive):
        if count >= MAX_MEMBERS:
            skipped.append(f"more than {MAX_MEMBERS} entries: the rest is left out")
            return
        if reason := _place(archive, entry, directory):
            skipped.append(f"{entry.name!r}: {reason}")


def _place(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: Path) -> str | None:
    parts = PurePosixPath(entry.name).parts
    if not parts or entry.name.startswith("/") or ".." in parts or "\0" in entry.name:
        return "its name points outside"
    if len(parts) > MAX_DEPTH:
        return f"deeper than {MAX_DEPTH} directories"
    target = directory.joinpath(*parts)
    if entry.islnk():
        return _link(entry.linkname, target, directory)
    try:
        if entry.isdir():
            target.mkdir(parents=True, exist_ok=True)
        elif entry.isfile() and not entry.issparse() and (content := archive.extractfile(entry)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(content, file)
        else:
            return "not a regular file"
    except OSError as err:  # a name too long for this file system, or a file where a directory should be
        return err.strerror or str(err)
    return None


def _link(name: str, target: Path, directory: Path) -> str | None:
    """One more name for a file that was placed: everything under `directory` was, and none of it is a symbolic link."""
    parts = PurePosixPath(name).parts
    source = directory.joinpath(*parts)
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        return "it is a link to outside"
    try:
        if not source.is_file():
            return "it is a link to something that is not here"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(source)
    except OSError as err:
        return err.strerror or str(err)
    return None
