"""Where the S3 face stands in the server: under every path that is not the control plane's, and at hosts `s3.`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

from forkyard.server.endpoints import Face as Place
from forkyard.server.s3.auth import Doorman, Pair
from forkyard.server.s3.face import Face

if TYPE_CHECKING:
    from forkyard.server.serving import Server

_CONTROL = ("api", "openapi.json")
"""First segments of paths that are the control plane's; a disk of such a name is reached by its id, or at `s3.`."""


def faces(server: Server) -> list[Place]:
    """The one face of S3. It comes after all others, since it takes what is left."""
    return [Place(_takes, Face(server.disks, doorman_of(server)))]


def doorman_of(server: Server) -> Doorman:
    """Lets in API keys, the S3 pairs that follow from them, and the pairs of disks."""

    def find_key(text: str) -> str | None:
        key = server.keys.find(text)
        return None if key is None else key.id

    def pair_of(access_key: str) -> Pair | None:
        secret = server.keys.signing_secret(access_key)
        if secret is not None:
            return Pair(secret, None)
        pair = server.disks.access.pair(access_key)
        return None if pair is None else Pair(pair.secret_key, pair.disk_id)

    return Doorman(find_key, pair_of)


def _takes(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").lower()
    return host.startswith(b"s3.") or scope["path"][1:].partition("/")[0] not in _CONTROL
