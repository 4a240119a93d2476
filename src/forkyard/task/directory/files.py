"""The files of a task directory on the host: listed, checked, packed for a sandbox, and digested.

Nothing outside the directory is ever read: a link that leaves it is a mistake of the task.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from forkyard.files import followed
from forkyard.task.directory.digest import full_digest, harbor_ignore, task_digest

SCRIPT_MODE = 0o555  # added to scripts: a checkout or an archive may have lost their exec bits
_SKIPPED = ".git"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the directory; `path` is relative, with forward slashes."""

    path: str
    kind: Literal["file", "directory", "link", "other"]


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task directory; digests are computed once, when first asked for."""

    root: Path

    @cached_property
    def digest(self) -> str:
        """The format's digest."""
        return task_digest(self.root, self._contents())

    @cached_property
    def full_digest(self) -> str:
        """The digest that covers every file."""
        return full_digest(self.root, self._contents())

    def entries(self, below: str = "") -> Iterator[Entry]:
        """Everything in the directory (or below one of its directories), parents first, sorted by name."""
        with os.scandir(self.root / below) as found:
            children = sorted(found, key=lambda child: child.name)
        for child in children:
            path = f"{below}/{child.name}" if below else child.name
            if path == _SKIPPED:
                continue
            entry = Entry(path, _kind(child))
            yield entry
            if entry.kind == "directory":
                yield from self.entries(path)

    def problems(self) -> list[str]:
        """One sentence for each thing that cannot be part of a task."""
        return [problem for entry in self.entries() if (problem := self._problem(entry))]

    def pack(self, directory: str, prefix: str = "", skip: Callable[[str], bool] = lambda path: False) -> bytes:
        """A tar of what is below `directory`, under `prefix`, owned by root; scripts (*.sh) can be executed."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if prefix:
                self._pack(archive, Entry(directory, "directory"), prefix)
            for entry in self.entries(directory):
                if not skip(entry.path):
                    self._pack(archive, entry, f"{prefix}{entry.path.removeprefix(directory)}".lstrip("/"))
        return out.getvalue()

    def left_out(self) -> Callable[[str], bool]:
        """Which files the task's .harborignore keeps out of packages and sandboxes."""
        return harbor_ignore(self.root)

    def _contents(self) -> list[str]:
        return [
            e.path for e in self.entries() if e.kind == "file" or (e.kind == "link" and (self.root / e.path).is_file())
        ]

    def _problem(self, entry: Entry) -> str | None:
        path = self.root / entry.path
        if entry.kind == "other":
            return f"{path} is neither a file nor a directory nor a link; remove it"
        if entry.kind != "link":
            return None
        try:
            target = _goal(path).relative_to(self.root.resolve())
        except OSError:
            return f"{path} is a link that leads only to itself; remove it"
        except ValueError:
            return f"{path} links to {path.readlink()}, outside the task; put a copy into the task"
        if self._travels(entry) or path.is_file():
            return None
        return f"{path} links to {target}, which a sandbox does not get together with it; put a copy in its place"

    def _travels(self, link: Entry) -> bool:
        """Whether a link means the same in a sandbox: it is relative and stays in its own part of the task."""
        target = posixpath.join(posixpath.dirname(link.path), str((self.root / link.path).readlink()))
        return _part(posixpath.normpath(target)) == _part(link.path)

    def _pack(self, archive: tarfile.TarFile, entry: Entry, name: str) -> None:
        path = self.root / entry.path
        member = tarfile.TarInfo(name)
        if entry.kind == "link" and self._travels(entry):
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
            archive.addfile(member)
            return
        status = path.stat()
        member.mode, member.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
        if entry.kind == "directory":
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
            return
        content = path.read_bytes()
        member.size = len(content)
        if name.endswith(".sh"):
            member.mode |= SCRIPT_MODE
        archive.addfile(member, io.BytesIO(content))


def is_within(root: Path, path: Path) -> bool:
    """Whether a path, links followed, lies in a directory."""
    try:
        return _goal(path).is_relative_to(root.resolve())
    except OSError:
        return False


def _goal(path: Path) -> Path:
    """Where a path leads, whether anything is there or not. OSError for a link that leads to itself."""
    try:
        return followed(path)
    except OSError as err:
        if err.errno == errno.ELOOP:
            raise
        return path.resolve()


def _part(path: str) -> list[str]:
    """The directory that reaches a sandbox as a whole: environment, tests, steps/one/tests."""
    parts = path.split("/")
    return parts[:3] if parts[0] == "steps" else parts[:1]


def _kind(entry: os.DirEntry[str]) -> Literal["file", "directory", "link", "other"]:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
