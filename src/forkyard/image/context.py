"""The build context: what a COPY takes from the directory of the Dockerfile, and a digest of it.

The digest covers names, modes, bytes and the targets of links, never times: touching a file changes nothing, a
changed byte always does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forkyard.errors import ConfigError
from forkyard.files import followed
from forkyard.image.patterns import (
    Ignore,
    States,
    has_wildcard,
    parse_ignore,
    pattern_regex,
    unescaped,
)
from forkyard.image.problem import Problem

Kind = Literal["directory", "file", "link"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name that is copied: `name` is relative to its source, and empty for the source itself.

    `content` is the SHA-256 of a file's bytes, and the target of a link.
    """

    name: str
    path: Path
    kind: Kind
    mode: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a COPY as found: its base name and, itself first, everything it holds in order of name."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def is_directory(self) -> bool:
        """Whether its content is copied rather than itself."""
        return self.entries[0].kind == "directory"


def digest(sources: Sequence[Source]) -> str:
    """What the sources hold, as one hexadecimal number."""
    hasher = hashlib.sha256()
    for source in sources:
        fields = ["source", "" if source.is_directory else source.name]
        for entry in source.entries:
            fields += [entry.kind, entry.name, f"{entry.mode:o}", entry.content]
        for field in fields:
            data = os.fsencode(field)
            hasher.update(b"%d:%b" % (len(data), data))
    return hasher.hexdigest()


_NOTHING = Ignore()


def _without(source: Source, exclude: Ignore) -> Source | None:
    """A source without the names an --exclude matches; None when it is a file of such a name itself."""
    if not source.is_directory:
        return None if exclude.excludes(source.name) else source
    kept = exclude.kept_of([entry.name for entry in source.entries])
    return Source(source.name, tuple(entry for entry in source.entries if not entry.name or entry.name in kept))


class Context:
    """The directory a COPY takes its sources from, without what its .dockerignore leaves out."""

    def __init__(self, root: Path, dockerfile: Path | None = None) -> None:
        """Raises ConfigError when there is no such directory or its .dockerignore is wrong.

        Where there is a file called as the Dockerfile with .dockerignore after it, that one counts instead.
        """
        try:
            self.root = followed(root)
        except OSError as error:
            raise ConfigError(f"{root}: the build context cannot be read: {error}") from error
        ignore = root / ".dockerignore"
        if dockerfile is not None and (own := dockerfile.with_name(f"{dockerfile.name}.dockerignore")).exists():
            ignore = own
        try:
            self.ignore = parse_ignore(ignore.read_bytes(), str(ignore))
        except FileNotFoundError:
            self.ignore = Ignore()
        except OSError as error:
            raise ConfigError(f"{ignore}: it cannot be read: {error.strerror}") from error

    def take(self, patterns: Sequence[str], exclude: Ignore = _NOTHING) -> tuple[Source, ...]:
        """What the sources of one COPY name, none for wildcards that match nothing.

        Raises Problem when one is missing or leaves the context.
        """
        try:
            taken = [self._source(name) for pattern in patterns for name in self._names(pattern)]
        except OSError as error:
            raise Problem(f"{error.filename} cannot be read: {error.strerror}") from error
        return tuple(left for source in taken if (left := _without(source, exclude)) is not None)

    def _names(self, pattern: str) -> list[str]:
        """The names, relative to the context, that one source spells or matches."""
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Problem(f"{pattern} leaves the build context: copy the file into {self.root}")
        if not any(has_wildcard(part) for part in parts):
            return ["/".join(unescaped(part) for part in parts)]
        names = [""]
        for part in parts:
            names = [found for name in names for found in self._matches(name, part)]
        return sorted(name for name in names if not self.ignore.excludes(name))

    def _matches(self, above: str, part: str) -> Iterator[str]:
        """The names in the directory `above` that one part of a pattern matches."""
        regex = pattern_regex(part, deep=False)
        directory = self._inside(above)
        if directory.is_dir():
            for name in sorted(entry.name for entry in directory.iterdir()):
                if regex.fullmatch(name):
                    yield posixpath.join(above, name)

    def _inside(self, name: str) -> Path:
        """Where a name leads when its links are followed. Raises Problem when that is not in the context."""
        path = self.root / name
        try:
            found = followed(path)
        except FileNotFoundError:
            raise Problem(f"{name} is not in the build context {self.root}") from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Problem(f"{name} is a link that leads to itself") from error
        if not found.is_relative_to(self.root):
            raise Problem(f"{name} is a link that leaves the build context: copy what it points to")
        return found

    def _source(self, name: str) -> Source:
        path = self._inside(name)
        inside = path.relative_to(self.root).as_posix()
        inside = "" if inside == "." else inside
        for reached in (name, inside):
            if reached and self.ignore.excludes(reached):
                raise Problem(f"{reached} is left out of the build context by .dockerignore")
        states = self.ignore.top
        for depth in range(len(Path(inside).parts)):
            states = self.ignore.states("/".join(Path(inside).parts[: depth + 1]), states)
        first = _entry("", path)
        below = self._walk(path, "", inside, states) if first.kind == "directory" else ()
        return Source(posixpath.basename(name), (first, *below))

    def _walk(self, directory: Path, name: str, inside: str, states: States) -> Iterator[Entry]:
        """Everything below a directory; one that is left out appears when something in it does not."""
        for child in sorted(entry.name for entry in directory.iterdir()):
            path = directory / child
            child_inside = posixpath.join(inside, child)
            child_states = self.ignore.states(child_inside, states)
            excluded = self.ignore.excluded(child_states)
            is_directory = stat.S_ISDIR(path.lstat().st_mode)
            if excluded and (self.ignore.prunes or not is_directory):
                continue
            child_name = posixpath.join(name, child)
            below = list(self._walk(path, child_name, child_inside, child_states)) if is_directory else []
            if below or not excluded:
                yield _entry(child_name, path)
                yield from below


def _entry(name: str, path: Path) -> Entry:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Entry(name, path, "directory", mode)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)  # noqa: PTH115 - a Path would rewrite it
        return Entry(name, path, "link", 0o777, target)
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            return Entry(name, path, "file", mode, hashlib.file_digest(file, "sha256").hexdigest())
    raise Problem(f"{path} is a socket, a pipe or a device, which cannot be copied: name it in .dockerignore")
