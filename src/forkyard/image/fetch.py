"""Files that an ADD takes from the network; the host fetches them, whatever network the build itself has."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx2

from forkyard.errors import SandboxError
from forkyard.values import MIB

_LARGEST = 1024 * MIB
_SECONDS = 60.0  # without a byte


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
    try:
        async with (
            httpx2.AsyncClient(timeout=_SECONDS, follow_redirects=True) as client,
            client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise SandboxError(f"{url} cannot be fetched: the server says {response.status_code}")
            with path.open("wb") as file:
                return await _written(file, response.aiter_raw(), url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise SandboxError(f"{url} cannot be fetched: {str(error) or type(error).__name__}") from error


async def _written(file: IO[bytes], pieces: AsyncIterator[bytes], url: str) -> str:
    digest = hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
        if file.write(piece) and file.tell() > _LARGEST:
            raise SandboxError(f"{url} cannot be fetched: it is larger than {_LARGEST} bytes")
    return digest.hexdigest()
