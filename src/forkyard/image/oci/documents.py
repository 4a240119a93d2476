"""The JSON documents of an image: an index of platforms, the manifest of one, its configuration. All are hostile."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from forkyard.image.oci.config import read_settings, written_settings
from forkyard.image.oci.errors import ImageSourceError
from forkyard.image.oci.reference import is_digest
from forkyard.sandbox import ImageConfig
from forkyard.values import MIB

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEXES = (OCI_INDEX, DOCKER_INDEX)
ACCEPT = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))
DOCUMENT_LIMIT = 4 * MIB
MOST_LAYERS = 256
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "riscv64": "riscv64"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One blob: its digest and its size, both of which are verified."""

    digest: str
    size: int
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one image of one platform is made of, lowest layer first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """An image's configuration, and the digests of its unpacked layers, lowest first."""

    image: ImageConfig
    diff_ids: tuple[str, ...]


def digest_of(data: bytes, like: str = "sha256:") -> str:
    """The digest of some bytes, of the kind `like` is of."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def architecture() -> str:
    """This machine's, as images call it."""
    machine = platform.machine()
    return _MACHINES.get(machine, machine)


def read_document(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object out of hostile bytes."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ImageSourceError(f"{what} is no JSON object")
    return found


def is_index(document: Mapping[str, Any]) -> bool:
    """Whether a document lists manifests rather than being one."""
    return document.get("mediaType") in INDEXES or ("manifests" in document and "layers" not in document)


def choose(index: Mapping[str, Any], what: str) -> Descriptor:
    """The manifest for this machine's platform."""
    listed = index.get("manifests")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    wanted = architecture()
    platforms = []
    for entry in entries:
        said = entry.get("platform")
        said = said if isinstance(said, dict) else {}
        if said.get("os", "linux") == "linux" and said.get("architecture", wanted) == wanted:
            return descriptor(entry, what)
        platforms.append(f"{said.get('os')}/{said.get('architecture')}"[:60])
    known = ", ".join(sorted(set(platforms) - {"unknown/unknown"})[:10]) or "no image at all"
    raise ImageSourceError(f"{what} has nothing for linux/{wanted}: it lists {known}")


def read_manifest(document: Mapping[str, Any], what: str) -> Manifest:
    """The manifest of one platform; ImageSourceError when it is of a kind that is not understood."""
    if document.get("schemaVersion") != 2:
        raise ImageSourceError(f"{what} has a manifest of a format before version 2: push the image again")
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_LAYERS:
        raise ImageSourceError(f"{what} has no list of at most {MOST_LAYERS} layers: it is no image of a file system")
    return Manifest(descriptor(document.get("config"), what), tuple(descriptor(layer, what) for layer in layers))


def descriptor(found: object, what: str) -> Descriptor:
    """One blob's digest and size."""
    if isinstance(found, dict):
        digest, size, kind = found.get("digest"), found.get("size"), found.get("mediaType", "")
        if is_digest(digest) and isinstance(size, int) and size >= 0 and isinstance(kind, str):
            return Descriptor(str(digest), size, kind)
    raise ImageSourceError(f"{what} describes a part without a digest that can be verified and a size")


def read_config(data: bytes, layers: int, what: str) -> Config:
    """An image's configuration; it has to know as many layers as the manifest."""
    document = read_document(data, f"the configuration of {what}")
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or len(diff_ids) != layers or not all(map(is_digest, diff_ids)):
        raise ImageSourceError(f"the configuration of {what} does not tell the digests of its {layers} layers")
    made_for = document.get("architecture")
    if made_for not in (None, "", architecture()) or document.get("os", "linux") not in ("", "linux"):
        raise ImageSourceError(
            f"{what} is an image for {document.get('os')}/{made_for}, and this machine is linux/{architecture()}"
        )
    said = document.get("config")
    return Config(read_settings(said if isinstance(said, dict) else {}, what), tuple(diff_ids))


def config_document(config: ImageConfig, diff_ids: tuple[str, ...], created: float) -> bytes:
    """The configuration of an image as others read it."""
    stamp = datetime.fromtimestamp(int(created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "created": stamp,
        "architecture": architecture(),
        "os": "linux",
        "config": written_settings(config),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [{"created": stamp, "created_by": "forkyard"} for _ in diff_ids],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def manifest_document(config: Descriptor, layers: tuple[Descriptor, ...]) -> bytes:
    """The manifest of an image as others read it."""
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": as_entry(config),
        "layers": [as_entry(layer) for layer in layers],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def as_entry(blob: Descriptor) -> dict[str, Any]:
    """A descriptor as documents hold it."""
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}
