"""Directories that are made once and kept, under `FORKYARD_HOME/cache`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forkyard.sandbox.common import default_home

_UNFINISHED = ".unfinished-"
_ABANDONED = 86_400.0  # seconds, after which what a killed process left is removed


def cache_of(kind: str) -> Path:
    """Where directories of a kind lie."""
    return default_home() / "cache" / kind


def kept(place: Path, fill: Callable[[Path], None]) -> Path:
    """`place`, filled when it is not there; several processes may ask at once, and one of them is kept."""
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    _sweep(place.parent)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=place.parent))
    try:
        fill(unfinished)
        unfinished.chmod(0o755)
        with suppress(OSError):  # another process was faster
            unfinished.rename(place)
        if not place.is_dir():
            raise OSError(f"{place} cannot be made")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
