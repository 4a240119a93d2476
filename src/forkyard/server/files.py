"""The server's own files, all under FORKYARD_HOME/server and readable by its user alone."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def server_home(home: Path) -> Path:
    """The directory of the server's files, made when it is missing."""
    place = home / "server"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


@lru_cache
def own_secret(home: Path) -> bytes:
    """32 random bytes of this server, the same for ever: signs tokens and derives S3 pairs."""
    path = server_home(home) / "secret"
    if not path.exists():
        place_once(path, secrets.token_bytes(32))
    return path.read_bytes()


def place_once(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole, unless it is there by then: of several processes one wins, and nobody sees half of it."""
    with written_beside(path, content, mode) as temporary, suppress(FileExistsError):
        os.link(temporary, path)


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole, in the place of what is there."""
    with written_beside(path, content, mode) as temporary:
        temporary.rename(path)


class written_beside:
    """A temporary file with that content beside `path`, gone at the end."""

    def __init__(self, path: Path, content: bytes, mode: int) -> None:
        self._temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        self._content = content
        self._mode = mode

    def __enter__(self) -> Path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self._temporary, flags, self._mode), "wb") as file:  # noqa: PTH123
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())
        return self._temporary

    def __exit__(self, *_: object) -> None:
        self._temporary.unlink(missing_ok=True)
