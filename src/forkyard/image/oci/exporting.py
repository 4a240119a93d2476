"""An image written into a file that docker, podman and skopeo load."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from forkyard.errors import ConfigError
from forkyard.image.oci.documents import OCI_INDEX, Descriptor, architecture, as_entry
from forkyard.image.oci.flat import Flat, flatten
from forkyard.image.oci.reference import parse_reference
from forkyard.image.oci.settings import blobs_directory
from forkyard.sandbox import ImageProvider


async def export(store: ImageProvider, name: str, file: Path) -> str:
    """Write an image as an archive that is both an OCI layout and what `docker load` reads; the manifest's digest.

    Raises ConfigError when there is no such image, OSError when the file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=blobs_directory()) as directory:
        flat = await flatten(store, name, Path(directory))
        await asyncio.to_thread(_write_layout, flat, name, file)
    return flat.manifest_blob.digest


def _write_layout(flat: Flat, name: str, file: Path) -> None:
    """The archive, in the place of the file only when it is whole."""
    try:
        reference = parse_reference(name)
        full = f"{reference.registry}/{reference.repository}:{reference.tag}" if reference.tag else ""
        names = [reference.name] if full else []
    except ConfigError:  # a name of this store that no registry would take
        full, names = "", []
    notes = {"org.opencontainers.image.ref.name": full.rpartition(":")[2], "io.containerd.image.name": full}
    entry = {**as_entry(flat.manifest_blob), "platform": {"os": "linux", "architecture": architecture()}}
    if full:
        entry["annotations"] = notes
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    saved = {"Config": _place(flat.config_blob), "RepoTags": names, "Layers": [_place(flat.layer_blob)]}
    documents = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
        "manifest.json": json.dumps([saved]).encode(),
        _place(flat.config_blob): flat.config,
        _place(flat.manifest_blob): flat.manifest,
    }
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for place, data in documents.items():
                _add(tar, place, len(data), io.BytesIO(data))
            with flat.layer.open("rb") as layer:
                _add(tar, _place(flat.layer_blob), flat.layer_blob.size, layer)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink()
        raise


def _place(blob: Descriptor) -> str:
    return f"blobs/{blob.digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    tar.addfile(info, content)
