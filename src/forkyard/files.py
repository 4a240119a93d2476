"""Writing a file whole or not at all, on the disk when the call returns; where a link leads."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

NEW: Final = ".new"
"""The ending of a file that is being written; a kill leaves one, which the next `replace` takes away."""


def replace(path: Path, pieces: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file in the place of what is there. Of one file there is one writer at a time."""
    new = path.with_name(path.name + NEW)
    new.unlink(missing_ok=True)
    _write(new, pieces, mode)
    new.replace(path)
    _sync(path.parent)


def place_once(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file unless it is there by then: of several processes one wins, and nobody sees half of it."""
    new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        _write(new, [content], mode)
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    _sync(path.parent)


def followed(path: Path) -> Path:
    """Where a path leads, its links followed. OSError when nothing is there, with ELOOP when a link leads to itself."""
    try:
        return path.resolve(strict=True)
    except RuntimeError as err:  # of a Python before 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from err


def _write(path: Path, pieces: Iterable[bytes], mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(fd)
    except OSError as err:  # of a full disk, say, which names no file
        path.unlink(missing_ok=True)
        raise err if err.filename else OSError(err.errno, err.strerror, str(path)) from err


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
