"""What nobody needs any more: layers without an image, and downloads nobody went on with."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from pathlib import Path

from forkyard.image.oci.install import LAYER_PREFIX
from forkyard.image.oci.settings import blobs_directory
from forkyard.sandbox import ImageProvider

_KEPT_SECONDS = 86400.0  # in which a pull that was given up may go on where it was


async def prune(store: ImageProvider) -> list[str]:
    """Remove the layers nothing stands on and what was left on its way for a day; one sentence for each."""
    layers = await store.prune_images(LAYER_PREFIX)
    left = await asyncio.to_thread(_prune_blobs, blobs_directory(), time.time() - _KEPT_SECONDS)
    return [*(f"{name}: nothing stands on it" for name in layers), *left]


def _prune_blobs(directory: Path, before: float) -> list[str]:
    done = []
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():  # of an export, a push or an import that was killed
            if all(_changed(one) < before for one in (path, *path.iterdir())):
                shutil.rmtree(path, ignore_errors=True)
                done.append(f"{path}: left behind")
        elif _changed(path) < before and _remove_download(path):
            done.append(f"{path}: a download nobody went on with")
    return done


def _changed(path: Path) -> float:
    try:
        return path.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # finished meanwhile
        return time.time()


def _remove_download(path: Path) -> bool:
    """Remove a download unless somebody is at it, who holds its lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(fd)
    return True
