"""Where a server is, and with which key: as it was given, or as the environment says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from forkyard.errors import ConfigError

URL_VARIABLES = ("FORKYARD_URL", "ARCHIL_BASE_URL")
KEY_VARIABLES = ("FORKYARD_KEY", "ARCHIL_API_KEY")
"""The first that is set counts."""


@dataclass(frozen=True, slots=True)
class Place:
    """One server. The key is in no text made of this. ConfigError for what is no address, or no key."""

    url: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
            raise ConfigError(f"{self.url!r} is no server's address: write it as http://127.0.0.1:8700")
        if not re.fullmatch(r"[!-~]+", self.key):
            raise ConfigError(f"the key for {self.url} has characters that no key has")

    @property
    def origin(self) -> str:
        """The address, to which paths are added."""
        return self.url.rstrip("/")

    @property
    def authorization(self) -> str:
        """What requests say of the key."""
        return self.key if self.key.startswith("key-") else f"key-{self.key}"


def place_of(url: str | None = None, key: str | None = None, environ: Mapping[str, str] = os.environ) -> Place | None:
    """The server that is meant, by what is given or by the environment; None when neither names one.

    Raises ConfigError for a server without a key.
    """
    url = url or next((environ[name] for name in URL_VARIABLES if environ.get(name)), None)
    if url is None:
        return None
    key = key or next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None)
    if key is None:
        raise ConfigError(
            f"there is no key for the server {url}: set {KEY_VARIABLES[0]} (`forkyard key create` made it)"
        )
    return Place(url, key)
