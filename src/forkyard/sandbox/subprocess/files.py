"""Files and archives of a directory that is taken for the whole file system: `inside` is a path told from its root."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence

from typing_extensions import Buffer

from forkyard.errors import SandboxError, TooLarge
from forkyard.sandbox.inside import archives, files, unpack
from forkyard.values import new_id


def read_file(root: int, path: str, inside: str, max_bytes: int) -> bytes:
    """As `Sandbox.read` of `path`."""
    with os.fdopen(files.open_for_read(root, inside), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise TooLarge(f"{path} has {size} bytes, more than the limit of {max_bytes}")
        return file.read(size)


def write_file(root: int, inside: str, data: bytes, mode: int) -> None:
    """As `Sandbox.write`."""
    new = f".{new_id()}"
    try:
        with os.fdopen(files.open_for_write(root, inside, mode, new), "wb") as file:
            file.write(data)
        files.place(root, inside, new, keep=True)
    except BaseException:
        files.place(root, inside, new, keep=False)
        raise


def pull(root: int, path: str, inside: str, exclude: Sequence[str], max_bytes: int) -> bytes:
    """As `Sandbox.pull` of `path`."""
    out = _Bounded(max_bytes, path)
    archives.pull(root, inside, list(exclude), out)
    return out.getvalue()


def push(root: int, path: str, inside: str, archive: bytes, layer: bool) -> None:
    """As `Sandbox.push` to `path`; everything in the archive belongs to this process's user."""
    try:
        unpack.push(root, inside, io.BytesIO(archive or bytes(1024)), owners=False, layer=layer)
    except (OSError, tarfile.TarError, ValueError) as err:
        raise SandboxError(f"cannot push {path}: {err}") from err


class _Bounded(io.BytesIO):
    """Takes an archive, up to a limit."""

    def __init__(self, max_bytes: int, path: str) -> None:
        super().__init__()
        self._max_bytes, self._path = max_bytes, path

    def write(self, data: Buffer, /) -> int:
        """Take a piece; TooLarge beyond the limit."""
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise TooLarge(f"{self._path} is larger than the limit of {self._max_bytes} bytes for an archive")
        return super().write(data)
