"""Files that an ADD takes from the network; the host fetches them, whatever network the build itself has."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from forkyard.errors import SandboxError
from forkyard.fetching import fetch
from forkyard.values import MIB

_LARGEST = 1024 * MIB


class Downloads:
    """Keeps what was fetched in a directory of its own, until it is left as a context manager."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="forkyard-add-")
        self._files: dict[str, tuple[Path, str]] = {}

    async def __aenter__(self) -> Self:
        """Nothing is fetched before it is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None:
        """Delete what was fetched."""
        self._directory.cleanup()

    async def fetch(self, url: str) -> tuple[Path, str]:
        """The file at a URL and the SHA-256 of its bytes. Raises SandboxError."""
        if url not in self._files:
            path = Path(self._directory.name) / secrets.token_hex(8)
            self._files[url] = (path, await _download(url, path))
        return self._files[url]


async def _download(url: str, path: Path) -> str:
    def failed(why: str | Exception) -> SandboxError:
        return SandboxError(f"{url} cannot be fetched: {str(why) or type(why).__name__}")

    digest = hashlib.sha256()
    with path.open("wb") as file:

        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        await fetch(url, write, _LARGEST, failed)
    return digest.hexdigest()
