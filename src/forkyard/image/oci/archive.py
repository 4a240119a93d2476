"""Images in archives: an OCI layout, or what `docker save` writes, packed or not. Names in them are hostile."""

from __future__ import annotations

import asyncio
import json
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forkyard.image.oci.blob import Blob
from forkyard.image.oci.documents import (
    DOCUMENT_LIMIT,
    MOST_LAYERS,
    Config,
    Descriptor,
    choose,
    descriptor,
    digest_of,
    is_index,
    read_config,
    read_document,
    read_manifest,
)
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.install import InstalledImage, Recipe, install
from forkyard.image.oci.layer import GuardedInfo
from forkyard.image.oci.settings import blobs_directory
from forkyard.image.packed import UNREADABLE, is_packed, unpacked
from forkyard.sandbox import ImageProvider
from forkyard.values import MIB, one_line

_MOST_NAMES = 100_000
_MOST_HOPS = 10
_MANIFEST, _INDEX = "manifest.json", "index.json"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What is said at an import of a saved image; what is empty leaves what the image says, and so do other keys."""

    env: Mapping[str, str]
    workdir: str
    user: str


async def import_image_archive(store: ImageProvider, archive: Path, name: str, over: Overrides) -> InstalledImage:
    """Make the image in an archive the image `name`; what `over` says takes the place of what the image says.

    Raises ImageSourceError when the archive is none that is known, holds no image for this machine, several of which
    none has that name, or one that is refused.
    """
    with tempfile.TemporaryDirectory(dir=blobs_directory()) as directory:
        files = await asyncio.to_thread(_open, archive, Path(directory))
        layers, config = await asyncio.to_thread(_image_of, files, name)
        image = replace(
            config.image,
            env={**config.image.env, **over.env},
            workdir=over.workdir or config.image.workdir,
            user=over.user or config.image.user,
        )

        @asynccontextmanager
        async def fetch(number: int) -> AsyncIterator[Blob]:
            yield layers[number]

        return await install(store, Recipe(name, str(archive), replace(config, image=image), fetch))


@dataclass(frozen=True, slots=True)
class _Files:
    """The regular files of an archive, and its links, by name."""

    what: str
    blobs: dict[str, Blob]
    links: dict[str, str]

    def find(self, name: str) -> Blob | None:
        """A file, through the links that `docker save` makes for layers that occur twice."""
        for _ in range(_MOST_HOPS):
            if name not in self.links:
                break
            name = posixpath.normpath(posixpath.join(posixpath.dirname(name), self.links[name]))
        return self.blobs.get(name)

    def read(self, name: str) -> bytes:
        """A small file as a whole."""
        blob = self.find(name)
        if blob is None or blob.size > DOCUMENT_LIMIT:
            raise ImageSourceError(f"{self.what} lacks {one_line(name)[:200]}, or it is too large for what it is")
        with blob.open() as file:
            return file.read()

    def of(self, wanted: Descriptor) -> Blob:
        """A blob of an OCI layout by its digest, which is verified when it is used."""
        name = f"blobs/{wanted.digest.replace(':', '/')}"
        blob = self.find(name)
        if blob is None or blob.size != wanted.size:
            raise ImageSourceError(f"{self.what} lacks the blob {wanted.digest}, or it is cut")
        return blob

    def document(self, wanted: Descriptor) -> bytes:
        """A small blob of an OCI layout, verified."""
        self.of(wanted)
        data = self.read(f"blobs/{wanted.digest.replace(':', '/')}")
        if digest_of(data, wanted.digest) != wanted.digest:
            raise ImageSourceError(f"{self.what} has other bytes than those of {wanted.digest}: refused")
        return data


def _open(archive: Path, directory: Path) -> _Files:
    """Where everything in an archive is; one that is packed is unpacked into the directory first."""
    what = str(archive)
    try:
        with archive.open("rb") as raw:
            if is_packed(raw):
                archive = directory / "archive.tar"
                with unpacked(raw) as stream, archive.open("wb") as file:
                    while data := stream.read(MIB):
                        file.write(data)
        return _index(archive, what)
    except UNREADABLE as error:
        raise ImageSourceError(f"{what} is no archive that can be read: {one_line(str(error))[:500]}") from error


def _index(archive: Path, what: str) -> _Files:
    files = _Files(what, {}, {})
    with tarfile.open(archive, "r:", tarinfo=GuardedInfo, encoding="utf-8", errors="surrogateescape") as tar:
        for count, info in enumerate(tar):
            name = posixpath.normpath(info.name)
            if count >= _MOST_NAMES:
                raise ImageSourceError(f"{what} has more than {_MOST_NAMES} files: it is no image archive")
            if info.isreg() and not info.issparse():
                files.blobs[name] = Blob(archive, info.offset_data, info.size)
            elif info.issym():
                files.links[name] = info.linkname
            elif info.islnk():
                files.links[name] = posixpath.relpath(info.linkname, posixpath.dirname(name) or ".")
    return files


def _image_of(files: _Files, name: str) -> tuple[tuple[Blob, ...], Config]:
    if files.find(_MANIFEST) is not None:  # which docker also writes into its OCI layouts, with the names
        return _saved(files, name)
    if files.find(_INDEX) is None:
        raise ImageSourceError(f"{files.what} has neither {_INDEX} nor {_MANIFEST}: it is no whole image archive")
    document = _entry(files, read_document(files.read(_INDEX), f"{_INDEX} of {files.what}"), name)
    for _ in range(_MOST_HOPS):
        if not is_index(document):
            break
        document = read_document(files.document(choose(document, files.what)), f"the manifest of {files.what}")
    manifest = read_manifest(document, files.what)
    config = read_config(files.document(manifest.config), len(manifest.layers), files.what)
    return tuple(files.of(layer) for layer in manifest.layers), config


def _entry(files: _Files, index: dict[str, Any], name: str) -> dict[str, Any]:
    """The index, or that entry of it which has the wanted name when there are several names."""
    listed = index.get("manifests")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    named: dict[str, dict[str, Any]] = {}
    for entry in entries:
        notes = entry.get("annotations")
        notes = notes if isinstance(notes, dict) else {}
        for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name"):
            if isinstance(notes.get(key), str):
                named.setdefault(notes[key], entry)
    if len(entries) < 2 or not named:
        return index
    chosen = _by_name(named, files.what, name)
    return read_document(files.document(descriptor(chosen, files.what)), f"the manifest of {files.what}")


def _saved(files: _Files, name: str) -> tuple[tuple[Blob, ...], Config]:
    """An image of `docker save`: its manifest is a list with the names of files."""
    try:
        listed = json.loads(files.read(_MANIFEST))
        images = [(dict(image), [str(tag) for tag in image.get("RepoTags") or ()]) for image in listed]
        chosen = images[0][0]
        if len(images) > 1:
            chosen = _by_name({tag: image for image, tags in images for tag in tags}, files.what, name)
        config_name, layers = str(chosen["Config"]), [str(layer) for layer in chosen["Layers"]]
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        raise ImageSourceError(f"{_MANIFEST} of {files.what} is not as `docker save` writes it") from None
    if len(layers) > MOST_LAYERS:
        raise ImageSourceError(f"{files.what} has an image of more than {MOST_LAYERS} layers")
    blobs = [files.find(posixpath.normpath(layer)) for layer in layers]
    found = tuple(blob for blob in blobs if blob is not None)
    if len(found) != len(blobs):
        raise ImageSourceError(f"{files.what} lacks a layer that its {_MANIFEST} names")
    return found, read_config(files.read(posixpath.normpath(config_name)), len(layers), files.what)


def _by_name(named: dict[str, dict[str, Any]], what: str, name: str) -> dict[str, Any]:
    for tag, entry in named.items():
        if name in (tag, tag.removeprefix("docker.io/"), tag.removeprefix("docker.io/library/")):
            return entry
    known = one_line(", ".join(sorted(named)[:10]))[:500]
    raise ImageSourceError(f"{what} holds several images: import it under the name of one of them ({known})")
