"""Requests that can be sent again: two with one `Idempotency-Key` make one sandbox, and both get it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from pydantic import BaseModel
from starlette.requests import Request

from forkyard.server.endpoints import Call
from forkyard.server.envelope import ApiError
from forkyard.server.sandboxes.life import Life
from forkyard.server.state import State, TakenError

HEADER = "idempotency-key"
_LONGEST = 255
_KEPT = 10_000  # requests that are remembered, the newest


class RepeatedError(Exception):
    """A request that was sent twice has made its sandbox already."""


class Sent(BaseModel, frozen=True):
    """What became of a request: the digest of what was asked, and the sandbox it made."""

    asked: str
    sandbox_id: str


class Repeats:
    """The requests of a server that had such a key."""

    def __init__(self, state: State) -> None:
        self._table = state.table("idempotency", Sent)

    def of(self, call: Call) -> Repeat | None:
        """The key of a request, if it has one. Raises ApiError 400 for one that cannot be."""
        key = _key(call.request)
        if key is None:
            return None
        who = call.key.id if call.key is not None else "-"
        body = call.body.model_dump_json() if call.body is not None else ""
        return Repeat(self, _digest(who, key), _digest(call.request.url.path, body))

    def find(self, repeat: Repeat) -> str | None:
        """The sandbox the request has made already. Raises ApiError 409 when the key was sent with another request."""
        found = self._table.get(repeat.key)
        if found is None:
            return None
        if found.asked != repeat.asked:
            raise ApiError(
                409, "this Idempotency-Key was sent with another request: use a new one", "idempotency_mismatch"
            )
        return found.sandbox_id

    def note(self, repeat: Repeat, life: Life) -> None:
        """Remember what a request has made. Raises RepeatedError when it, sent twice, has made something already."""
        try:
            self._table.add(repeat.key, Sent(asked=repeat.asked, sandbox_id=life.id))
        except TakenError:
            raise RepeatedError from None
        self._table.keep_newest(_KEPT)

    def forget_unless(self, repeat: Repeat, there: Callable[[str], bool]) -> None:
        """A request failed: unless the sandbox it made is there, it may be sent again."""
        found = self._table.get(repeat.key)
        if found is not None and not there(found.sandbox_id):
            self._table.delete(repeat.key)


class Repeat:
    """One such request."""

    def __init__(self, repeats: Repeats, key: str, asked: str) -> None:
        self.repeats = repeats
        self.key = key
        self.asked = asked


def _key(request: Request) -> str | None:
    key = request.headers.get(HEADER)
    if key is not None and not 0 < len(key) <= _LONGEST:
        raise ApiError(400, f"an Idempotency-Key has 1 to {_LONGEST} characters; a UUID is a good one")
    return key


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
