"""/etc/resolv.conf of a sandbox: its network's while that has a name server, and then again what was there before."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forkyard.errors import SandboxError
from forkyard.sandbox.archive import all_but
from forkyard.values import MIB

_FOLDER, _NAME = "etc", "resolv.conf"
_PATH = f"/{_FOLDER}/{_NAME}"
_LARGEST = 1 * MIB


class Files(Protocol):
    """What is needed of a running sandbox."""

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """As `Sandbox.write`."""
        ...

    async def pull(self, path: str, exclude: Sequence[str] = (), max_bytes: int = _LARGEST) -> bytes:
        """As `Sandbox.pull`."""
        ...

    async def push(self, archive: bytes, path: str = "/", *, layer: bool = False) -> None:
        """As `Sandbox.push`."""
        ...


@dataclass(frozen=True, slots=True)
class Before:
    """What was there: the directory's own entry, so that its time can be put back too, and the file or link."""

    folder: tarfile.TarInfo | None
    file: tuple[tarfile.TarInfo, bytes] | None


class NameServer:
    """What one sandbox's /etc/resolv.conf is to say; `before` is what was there, while it says something else."""

    def __init__(self, before: Before | None = None) -> None:
        self.before = before

    async def follow(self, files: Files, server: str | None) -> None:
        """Have the file name `server`; without one, put back what was there. Raises SandboxError."""
        try:
            if server is not None:
                self.before = self.before or await _look(files)
                await files.write(_PATH, f"nameserver {server}\n".encode())
            elif self.before is not None:
                await _put_back(files, self.before)
                self.before = None
        except (OSError, tarfile.TarError, ValueError) as err:
            raise SandboxError(f"{_PATH} cannot be had for the sandbox's network: {err}") from err

    def owns(self, path: str) -> bool:
        """Whether what is at `path` now is the network's, and no change of the sandbox's."""
        if self.before is None:
            return False
        return path == _PATH or (path == f"/{_FOLDER}" and self.before.folder is None)


async def _look(files: Files) -> Before:
    folder = _only(await files.pull("/", exclude=all_but(_FOLDER), max_bytes=_LARGEST))
    try:
        return Before(folder and folder[0], _only(await files.pull(_PATH, max_bytes=_LARGEST)))
    except (FileNotFoundError, NotADirectoryError):
        return Before(folder and folder[0], None)


def _only(archive: bytes) -> tuple[tarfile.TarInfo, bytes] | None:
    """The one member of an archive, and its content."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as tar:
        info = tar.next()
        content = tar.extractfile(info) if info is not None and info.isreg() else None
        return None if info is None else (info, content.read() if content else b"")


async def _put_back(files: Files, before: Before) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        if before.folder is not None:
            tar.addfile(before.folder)
        if before.file is None:
            tar.addfile(tarfile.TarInfo(f"{_FOLDER}/.wh.{_NAME}"))
        else:
            info, content = before.file
            info.name = f"{_FOLDER}/{_NAME}"
            tar.addfile(info, io.BytesIO(content))
    await files.push(buffer.getvalue(), layer=True)
    if before.folder is None and await _is_empty(files):
        await files.push(_removal_of_folder(), layer=True)


async def _is_empty(files: Files) -> bool:
    return _only(await files.pull(f"/{_FOLDER}", exclude=["*/*"], max_bytes=_LARGEST)) is None


def _removal_of_folder() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(f".wh.{_FOLDER}"))
    return buffer.getvalue()
