"""Connections of sandboxes' ports on their way to a client: each waits for the web socket that fetches it."""

from __future__ import annotations

import asyncio
import secrets
import socket

FETCH_SECONDS = 30.0


class Streams:
    """Those of a server, by token; one that nobody fetches in time is closed."""

    def __init__(self) -> None:
        self._waiting: dict[str, socket.socket] = {}

    def offer(self, sock: socket.socket) -> str:
        """A token for it."""
        token = secrets.token_urlsafe(24)
        self._waiting[token] = sock
        asyncio.get_running_loop().call_later(FETCH_SECONDS, self.drop, token)
        return token

    def take(self, token: str) -> socket.socket | None:
        """The one with that token, once."""
        return self._waiting.pop(token, None)

    def drop(self, token: str) -> None:
        """Nobody wants it."""
        if (sock := self.take(token)) is not None:
            sock.close()

    def close(self) -> None:
        """Close all that wait."""
        for token in list(self._waiting):
            self.drop(token)
