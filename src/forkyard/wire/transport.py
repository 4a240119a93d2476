"""What is asked of a transport: requests and web sockets, to a server by its URL or in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from forkyard.errors import ForkyardError

REPLY_LIMIT = 64 << 20
"""Bytes of an answer of the control plane."""
_TEXT = 2000


class RefusedError(ForkyardError):
    """The server refused, or could not be reached (`status` 0); `code` is its word for programs."""

    def __init__(self, status: int, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class ClosedError(ForkyardError):
    """A web socket has come to its end; `code` and `reason` as the other side gave them."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(reason or f"the socket was closed with code {code}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Socket(Protocol):
    """One web socket. Both methods raise ClosedError once it has ended."""

    async def send(self, message: str | bytes) -> None:
        """Send a message, and wait while the other side takes none."""
        ...

    async def receive(self) -> str | bytes:
        """The next message."""
        ...


class Transport(Protocol):
    """Requests and web sockets to one server, with its key."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str]] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = REPLY_LIMIT,
    ) -> Reply:
        """Ask, and wait for the whole answer, whatever its status; `path` is encoded already.

        RefusedError with the status 0: nobody answered, or with more than `limit` bytes.
        """
        ...

    def socket(self, path: str) -> AbstractAsyncContextManager[Socket]:
        """A web socket, closed when it is left. RefusedError when it is not to be had."""
        ...

    async def close(self) -> None:
        """Let go of connections. Closing twice is fine."""
        ...


def data_of(reply: Reply) -> Any:
    """The data of a success of the control plane, None when it has none. Raises RefusedError for a refusal."""
    whole = _json(reply.body) if reply.body else {"success": reply.status < 400}
    if isinstance(whole, dict) and whole.get("success") is True and reply.status < 400:
        return whole.get("data")
    text, code = None, None
    if isinstance(whole, dict):
        text, code = whole.get("error"), whole.get("code")
    told = text[:_TEXT] if isinstance(text, str) and text else f"the server answered with status {reply.status}"
    # What takes long is announced by a status of success, and a refusal is then in the body.
    raise RefusedError(reply.status, told, code if isinstance(code, str) else None)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
