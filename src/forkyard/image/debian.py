"""A Debian made of its packages, without a registry: by mmdebstrap or debootstrap, whichever is installed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forkyard.errors import ConfigError
from forkyard.image.importer import ImportedImage, import_archive
from forkyard.image.oci.reference import DEBIAN
from forkyard.programs import run
from forkyard.sandbox import ImageConfig, ImageProvider
from forkyard.values import one_line, printable, tail

_NUMBERS = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
_DOCUMENTS = ("usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*")
_CACHES = ("var/cache/apt/archives/*.deb", "var/cache/apt/*.bin")
_SHOWN = 2000
_SECONDS = 3600.0
_PATIENCE = 10.0  # for mmdebstrap to remove what it has unpacked


@dataclass(frozen=True, slots=True)
class _Release:
    """What is asked for: a release of Debian, with or without its manuals and translations."""

    suite: str
    slim: bool


async def bootstrap(store: ImageProvider, name: str) -> ImportedImage:
    """Make the image `name`, which is debian:SUITE or debian:SUITE-slim, of Debian's packages.

    Raises ConfigError for another name, when neither program is installed or may be used, and when the one fails.
    """
    release = _release(name)
    with tempfile.TemporaryDirectory(prefix="forkyard-bootstrap-") as directory:
        archive = Path(directory) / "root.tar"
        for command in _commands(release, Path(directory) / "root", archive):
            await _run(command)
        return await import_archive(store, archive, name, ImageConfig(cmd=("bash",)))


def _release(name: str) -> _Release:
    match = DEBIAN.fullmatch(name)
    if match is None:
        raise ConfigError(f"{one_line(name)!r}: only a Debian can be made of packages, as debian:bookworm-slim")
    return _Release(_NUMBERS.get(match[1], match[1]), match[2] is not None)


def _commands(release: _Release, root: Path, archive: Path) -> list[list[str]]:
    """What makes the archive, one after the other."""
    left_out = (*_CACHES, *(_DOCUMENTS if release.slim else ()))
    if shutil.which("mmdebstrap"):
        skipped = [f"--dpkgopt=path-exclude=/{pattern}" for pattern in (_DOCUMENTS if release.slim else ())]
        return [["mmdebstrap", "--variant=minbase", *skipped, release.suite, str(archive)]]
    if shutil.which("debootstrap") is None:
        raise ConfigError("neither mmdebstrap nor debootstrap is installed: `apt-get install mmdebstrap`")
    if os.getuid() != 0:
        raise ConfigError("debootstrap works for root only: run as root, or `apt-get install mmdebstrap`")
    excluded = [f"--exclude=./{pattern}" for pattern in left_out]
    return [
        # In mounts of its own, so that what it mounts into the new root goes with it however it ends.
        ["unshare", "--mount", "debootstrap", "--variant=minbase", release.suite, str(root)],
        ["tar", "-C", str(root), "--numeric-owner", *excluded, "-cf", str(archive), "."],
    ]


async def _run(command: Sequence[str]) -> None:
    """Run a program to its end. ConfigError with the end of its output."""
    program = next(word for word in command if word not in ("unshare", "--mount"))
    try:
        code, out, complaints = await run(command, seconds=_SECONDS, keep=_SHOWN, patience=_PATIENCE)
    except TimeoutError:
        raise ConfigError(f"{program} took longer than {_SECONDS:g} s") from None
    if code != 0:
        shown = printable(tail((out + complaints).decode("utf-8", "replace"), _SHOWN))
        raise ConfigError(f"{program} failed (exit code {code}); the end of its output:\n{shown}")
