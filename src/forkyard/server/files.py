"""The server's own files, all under FORKYARD_HOME/server and readable by its user alone."""

from __future__ import annotations

import secrets
from functools import lru_cache
from pathlib import Path

from forkyard.files import place_once

_OWN = 0o600


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
        place_once(path, secrets.token_bytes(32), _OWN)
    return path.read_bytes()
