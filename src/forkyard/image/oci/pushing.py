"""An image put into a registry."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.image.oci.documents import OCI_MANIFEST
from forkyard.image.oci.flat import flatten
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.registry import open_registry
from forkyard.image.oci.settings import blobs_directory
from forkyard.sandbox import ImageProvider
from forkyard.values import MIB


async def push(store: ImageProvider, name: str, to: str | None = None) -> str:
    """Put an image into a registry, under its own name or another; the manifest's digest.

    Raises ConfigError when there is no such image or the reference is wrong, ImageSourceError when the registry does
    not take it.
    """
    reference = parse_reference(to or name)
    if reference.digest is not None or reference.tag is None:
        raise ConfigError(f"{to or name}: an image is pushed under a tag, its digest follows from what it holds")
    with tempfile.TemporaryDirectory(dir=blobs_directory()) as directory:
        flat = await flatten(store, name, Path(directory))
        async with await open_registry(reference) as registry:
            await registry.upload(flat.layer_blob, lambda: _chunks(flat.layer))
            await registry.upload(flat.config_blob, lambda: _whole(flat.config))
            await registry.put_manifest(reference.tag, flat.manifest, OCI_MANIFEST)
    return flat.manifest_blob.digest


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, MIB):
            yield data


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
