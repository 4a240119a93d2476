"""`-d REFERENCE`: name@version of a registry, a directory, an archive, or a git repository at a commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.sandbox.common import default_home
from forkyard.task.directory import DirectoryTaskset
from forkyard.task.registry.archive import unpack_archive
from forkyard.task.registry.imports import inner, load_import
from forkyard.task.registry.kinds import ENDINGS, MANIFEST, is_archive, is_repository
from forkyard.task.registry.listing import LISTING, load_listed, read_listing
from forkyard.task.registry.manifest import read_manifest
from forkyard.task.registry.repository import Repository, check_out
from forkyard.values import nearest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
Load = Callable[[], DirectoryTaskset]


def load_reference(
    reference: str, registry: Path | None = None, host: Mapping[str, str] | None = None
) -> DirectoryTaskset:
    """The tasks of `name@version`, in a registry (`FORKYARD_HOME/tasksets` by default), or of `URL@COMMIT[#FOLDER]`.

    Raises ConfigError with everything that is wrong with them.
    """
    if is_repository(reference):
        repository = Repository.parse(reference)
        return load_import(check_out(repository), str(repository), host)
    name, _, version = reference.partition("@")
    if not _NAME.fullmatch(name) or ".." in name or (version and not _VERSION.fullmatch(version)):
        raise ConfigError(
            f"import_failed: {reference!r} is neither name@version, nor a directory or an archive that is there, nor "
            "the address of a git repository with a commit, URL@COMMIT"
        )
    root = registry or default_home() / "tasksets"
    versions = _versions(root, name, host)
    if not version and len(versions) == 1:
        version = next(iter(versions))
    if version not in versions:
        raise ConfigError(_unknown(root, name, version, versions))
    return versions[version]()


def _versions(root: Path, name: str, host: Mapping[str, str] | None) -> dict[str, Load]:
    """How to load each version of a set: of registry.json, NAME/VERSION, NAME/VERSION.tar, or NAME with a manifest.

    Raises ConfigError.
    """
    found: list[tuple[str, Load]] = [
        (listed.version, partial(load_listed, root, listed, host))
        for listed in read_listing(root / LISTING)
        if listed.name == name
    ]
    folder = root / name
    if (folder / MANIFEST).exists():
        about = read_manifest(folder / MANIFEST).listed.dataset
        found.append((about.version or "", partial(_load_placed, folder, name, about.version or "", host)))
    elif folder.is_dir():
        for child in sorted(folder.iterdir()):
            ending = next((end for end in ENDINGS if child.name.endswith(end)), "")
            if not child.name.startswith(".") and (child.is_dir() or ending):
                version = child.name.removesuffix(ending)
                found.append((version, partial(_load_placed, child, name, version, host)))
    versions = dict(found)
    if len(versions) < len(found):
        twice = next(version for version, _ in found if sum(version == other for other, _ in found) > 1)
        raise ConfigError(f"import_failed: {root} holds {name}@{twice} twice; remove one")
    return versions


def _load_placed(path: Path, name: str, version: str, host: Mapping[str, str] | None) -> DirectoryTaskset:
    """A directory or an archive of a registry, whose manifest, if it has one, is to be of that name and version."""
    label = f"{name}@{version}" if version else name
    place = unpack_archive(path) if is_archive(path) else path
    listing = inner(place) / MANIFEST
    if listing.exists():
        manifest = read_manifest(listing)
        about = manifest.listed.dataset
        if (about.name, about.version or version) != (name, version):
            raise ConfigError(f"dataset_manifest_invalid: {listing} is of {manifest.label}, not of {label}")
    return load_import(place, label, host)


def _unknown(root: Path, name: str, version: str, versions: Mapping[str, Load]) -> str:
    if versions:
        which = f"has no version {version}" if version else "is there in several versions"
        return (
            f"import_failed: {name} {which}: write {name}@VERSION with one of {', '.join(sorted(versions))} (in {root})"
        )
    if not root.is_dir():
        return (
            f"import_failed: there is no registry {root} that {name!r} could be in: name its directory with --registry"
        )
    names = {listed.name for listed in read_listing(root / LISTING)}
    names |= {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    near = nearest(name, names)
    return f"import_failed: the registry {root} holds no {name!r}: " + (
        f"did you mean {near}?" if near else f"it holds {', '.join(sorted(names)) or 'nothing'}"
    )
