"""Tokens for ports: each good for one port of one sandbox, kept as hashes, compared in constant time."""

from __future__ import annotations

import secrets
import time

from pydantic import BaseModel

from forkyard.server.envelope import ApiError
from forkyard.server.keys import digest_of, is_known_by
from forkyard.server.state import State

PREFIX = "apt_"
LIMIT = 1000  # of one sandbox


class PortToken(BaseModel, frozen=True):
    """What is kept of a token. Times are epoch seconds."""

    id: str
    sandbox_id: str
    port: int
    created: float
    expires: float | None
    digest: str

    @property
    def is_good(self) -> bool:
        """Whether it has not expired."""
        return self.expires is None or self.expires > time.time()


class PortTokens:
    """The tokens of one server: rows, and by their sandboxes."""

    def __init__(self, state: State) -> None:
        self._table = state.table("port_tokens", PortToken)
        self._known: dict[str, dict[str, PortToken]] = {}
        for token in self._table.list():
            self._known.setdefault(token.sandbox_id, {})[token.id] = token

    def of(self, sandbox_id: str) -> list[PortToken]:
        """Those of a sandbox that are good, oldest first; others are forgotten."""
        known = self._known.get(sandbox_id, {})
        for token in list(known.values()):
            if not token.is_good:
                self.delete(token)
        return list(known.values())

    def get(self, sandbox_id: str, token_id: str) -> PortToken:
        """One of them. Raises ApiError 404 for one that is unknown, has expired or was deleted."""
        token = self._known.get(sandbox_id, {}).get(token_id)
        if token is None or not token.is_good:
            raise ApiError(404, "there is no such token: it has expired, was deleted, or never was", "not_found")
        return token

    def create(self, sandbox_id: str, port: int, seconds: float | None) -> tuple[PortToken, str]:
        """A new token, and its text, which is told this once. Raises ApiError 409 when there are too many."""
        if len(self.of(sandbox_id)) >= LIMIT:
            raise ApiError(409, f"the sandbox has {LIMIT} tokens already: delete some", "too_many")
        token_id = secrets.token_hex(8)
        text = f"{PREFIX}{token_id}.{secrets.token_urlsafe(32)}"
        now = time.time()
        token = PortToken(
            id=token_id,
            sandbox_id=sandbox_id,
            port=port,
            created=now,
            expires=None if seconds is None else now + seconds,
            digest=digest_of(text),
        )
        self._table.add(token_id, token)
        self._known.setdefault(sandbox_id, {})[token_id] = token
        return token, text

    def find(self, sandbox_id: str, port: int, text: str) -> PortToken | None:
        """The token with that text, if it opens that port."""
        token = self._known.get(sandbox_id, {}).get(text.removeprefix(PREFIX).partition(".")[0])
        same = is_known_by(text, token.digest if token else None)
        return token if token is not None and same and token.port == port and token.is_good else None

    def delete(self, token: PortToken) -> None:
        """Forget one."""
        self._table.delete(token.id)
        self._known.get(token.sandbox_id, {}).pop(token.id, None)

    def forget(self, sandbox_id: str) -> None:
        """Forget all of a sandbox."""
        for token in self._known.pop(sandbox_id, {}).values():
            self._table.delete(token.id)
