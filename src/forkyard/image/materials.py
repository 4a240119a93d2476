"""What a COPY, an ADD or a mount takes its files from, found on paper."""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forkyard.image.chmod import parse_chmod
from forkyard.image.context import Context, Source
from forkyard.image.instructions import Copy, Dockerfile, Mount
from forkyard.image.packed import UNREADABLE, unpacked
from forkyard.image.patterns import escaped, ignore_of
from forkyard.image.plan import Archive, CopyFiles, Download, Material, Mounted, StagePlan, Taken, Text, hashed
from forkyard.image.problem import Problem
from forkyard.image.stages import find_stage
from forkyard.sandbox import ImageInfo

_CHECKSUM = re.compile(r"sha256:([0-9a-f]{64})")
_GIT = re.compile(r"git@|git://|ssh://|https?://[^#?]*\.git(?:[#?].*)?$")


class Materials:
    """Finds materials for one stage."""

    def __init__(
        self,
        dockerfile: Dockerfile,
        stage: int,
        context: Context,
        images: Mapping[str, ImageInfo],
        made: Mapping[int, StagePlan],
        fetched: Mapping[str, str],
    ) -> None:
        self._dockerfile, self._stage, self._context = dockerfile, stage, context
        self._images, self._made, self._fetched = images, made, fetched

    def copied(self, copy: Copy, values: Mapping[str, str], workdir: str) -> CopyFiles:
        """What a COPY or ADD does. Raises Problem."""
        patterns = [word.expand(values) for word in copy.sources]
        written = copy.destination.expand(values)
        for value, what in (*((pattern, "a source") for pattern in patterns), (written, "the destination")):
            if not value:
                raise Problem(f"{what} of {copy.name} is empty once its variables are expanded: set them")
        into = written.endswith("/") or posixpath.basename(written) in (".", "..")
        if len(patterns) + len(copy.files) > 1 and not into:
            raise Problem(f"{copy.name} of several sources to {written}: end the destination with a slash")
        destination = absolute(workdir, written)
        if into and destination != "/":
            destination += "/"
        exclude = tuple(word.expand(values) for word in copy.exclude)
        checksum = _checksum(copy, copy.checksum.expand(values), patterns)
        found = [one for pattern in patterns for one in self._found(copy, pattern, exclude, checksum)]
        if not found and not copy.files:
            raise Problem(f"nothing in the build context matches {' '.join(patterns)}")
        texts = [Text(file.name, file.content.expand(values).encode()) for file in copy.files]
        chmod = parse_chmod(copy.chmod.expand(values))
        return CopyFiles((*found, *texts), destination, copy.chown.expand(values), chmod, exclude)

    def _found(self, copy: Copy, pattern: str, exclude: tuple[str, ...], checksum: str) -> list[Material]:
        if copy.origin:
            ignore_of(exclude)
            return [self._taken(copy.origin, pattern)]
        if _GIT.match(pattern) and copy.name == "ADD":
            raise Problem(f"ADD of the repository {pattern} is not supported: clone it before the build and COPY it")
        if pattern.startswith(("http://", "https://")):
            if copy.name == "COPY":
                raise Problem(f"COPY of {pattern} is not possible: write ADD")
            return [self._download(pattern, checksum, copy.unpack is True)]
        sources = self._context.take([pattern], ignore_of(exclude))
        if copy.name == "COPY" or copy.unpack is False:
            return list(sources)
        return [_unpacked(source) for source in sources]

    def _download(self, url: str, checksum: str, unpack: bool) -> Download:
        try:
            name = posixpath.basename(unquote(urlsplit(url).path)) or "__unnamed__"
        except ValueError as error:
            raise Problem(f"{url} is no address: {error}") from None
        return Download(url, name, checksum or self._fetched.get(url, ""), unpack)

    def _taken(self, origin: str, pattern: str) -> Taken:
        stage = find_stage(self._dockerfile, origin, self._stage)
        pattern = absolute("/", pattern)
        if stage is not None and stage.index in self._made:
            made = self._made[stage.index]
            return Taken(made.name, made.disk, pattern)
        info = self._images.get(origin) if stage is None else None
        if info is None:
            raise Problem(f"--from={origin} in an ONBUILD names no stage or image of this build: name it in a FROM")
        return Taken(info.name, hashed(info.name, info.created), pattern)

    def mounted(self, mount: Mount, values: Mapping[str, str], workdir: str) -> Mounted:
        """What a mount does. Raises Problem."""
        written = mount.target.expand(values) if mount.target is not None else ""
        if mount.target is not None and not written:
            raise Problem("the target of a mount is empty once its variables are expanded: set them")
        target = absolute(workdir, written) if written else ""
        if target == "/":
            raise Problem("a mount at / would hide the image: give it a directory of its own")
        source = mount.source.expand(values) or "/"
        materials: tuple[Source | Taken, ...] = ()
        if mount.origin:
            materials = (self._taken(mount.origin, escaped(source)),)
        elif mount.kind == "bind":
            materials = self._context.take([escaped(source)])
        name = mount.name.expand(values) or (target if mount.kind == "cache" else "")
        return Mounted(mount, target, materials, name)


def absolute(workdir: str, path: str) -> str:
    """A path as it is from the root, whatever it was written from."""
    return "/" + posixpath.normpath(posixpath.join("/", workdir, path)).lstrip("/")


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, packed or not."""
    try:
        with path.open("rb") as file, unpacked(file) as stream:
            tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except UNREADABLE:
        return False
    return True


def _unpacked(source: Source) -> Source | Archive:
    first = source.entries[0]
    if source.is_directory or not is_archive(first.path):
        return source
    return Archive(first.path, first.content)


def _checksum(copy: Copy, text: str, patterns: list[str]) -> str:
    if not text:
        return ""
    match = _CHECKSUM.fullmatch(text)
    if match is None:
        raise Problem(f"ADD --checksum={text[:80]} is not possible: write sha256: and 64 hexadecimal digits")
    if len(patterns) != 1 or copy.files or not patterns[0].startswith(("http://", "https://")):
        raise Problem("ADD --checksum is for one file that is downloaded: give each its own ADD")
    return match[1]
