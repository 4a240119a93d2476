"""API keys: random, stored as hashes, compared in constant time. There is none until one is created.

A key is written `key-<id>.<secret>`. S3 clients sign with a pair that follows from it and the server's own secret
(`Keys.signing_secret`), since a signature cannot be checked against a hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from forkyard.server.files import own_secret, server_home
from forkyard.server.state import State

PREFIX = "key-"
_NOBODY = hashlib.sha256(b"").hexdigest()


class Key(BaseModel, frozen=True):
    """What is kept of an API key."""

    id: str
    name: str
    description: str
    created: float
    suffix: str  # its last four characters, for people to tell keys apart
    digest: str


class Keys:
    """The keys of one server, in its state."""

    def __init__(self, state: State, home: Path) -> None:
        self._table = state.table("keys", Key)
        self._home = home

    def create(self, name: str, description: str = "") -> tuple[Key, str]:
        """A new key, and its text, which is shown this once. Raises TakenError."""
        key_id = secrets.token_hex(8)
        text = f"{PREFIX}{key_id}.{secrets.token_urlsafe(32)}"
        key = Key(
            id=key_id,
            name=name,
            description=description,
            created=time.time(),
            suffix=text[-4:],
            digest=digest_of(text),
        )
        self._table.add(key_id, key, name=name)
        return key, text

    def find(self, text: str) -> Key | None:
        """The key with that text, with or without its prefix."""
        whole = text if text.startswith(PREFIX) else PREFIX + text
        key = self._table.get(whole.removeprefix(PREFIX).partition(".")[0])
        return key if is_known_by(whole, key.digest if key else None) else None

    def get(self, id_or_name: str) -> Key | None:
        """A key by its id or its name."""
        return self._table.get(id_or_name) or self._table.named(id_or_name)

    def list(self, after: str | None = None, limit: int | None = None) -> list[Key]:
        """Every key, oldest first."""
        return self._table.list(after, limit)

    def revoke(self, id: str) -> bool:
        """Forget a key; False when there is none of that id."""
        return self._table.delete(id)

    def signing_secret(self, key_id: str) -> str | None:
        """What S3 clients sign with whose access key is `key_id`; None when there is no such key."""
        if self._table.get(key_id) is None:
            return None
        return hmac.new(own_secret(self._home), f"s3:{key_id}".encode(), hashlib.sha256).hexdigest()


@contextmanager
def opened_keys(home: Path) -> Iterator[Keys]:
    """The keys of a FORKYARD_HOME, whether a server runs on it or not."""
    state = State(server_home(home) / "state.sqlite")
    try:
        yield Keys(state, home)
    finally:
        state.close()


def digest_of(text: str) -> str:
    """What is kept of a key or a token, by which its text is known again."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def is_known_by(text: str, digest: str | None) -> bool:
    """Whether `digest` was kept of this text; where there is none it takes as long to say no."""
    return hmac.compare_digest(digest_of(text), digest or _NOBODY) and digest is not None
