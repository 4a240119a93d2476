"""Watches one reply go by: reads it while it is relayed, and says what came over when it has ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from forkyard.gateway.decoding import REPLY_LIMIT, Events, Inflater, read_json
from forkyard.gateway.dialects import Answered, Assembler, Dialect
from forkyard.model.completion import ReportedError
from forkyard.trace import Usage

_DONE = b"[DONE]"
_NO_USAGE = re.compile(rb',\s*"usage"\s*:\s*null(?=\s*[,}])')
"""Never inside a text: quotes are escaped there."""
NOTHING = Answered(None, Usage())


class LeakError(ValueError):
    """A provider sent a key back."""


class Guard:
    """Looks for keys in what goes into a sandbox."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]
        self._overlap = max(map(len, self._keys), default=1) - 1
        self._tail = b""

    def check(self, data: bytes) -> None:
        """Raise LeakError when a key is in what has come so far."""
        seen = self._tail + data
        if any(key in seen for key in self._keys):
            raise LeakError("sent back the key it was given")
        self._tail = seen[-self._overlap :] if self._overlap else b""


class StreamObserver:
    """Reads a streamed reply. `feed` gives the bytes to pass on.

    With `hide_usage` the chunk that tells the usage is taken out again: the client had not asked for it.
    """

    def __init__(self, dialect: Dialect, encoding: str, guard: Guard, hide_usage: bool) -> None:
        self._dialect = dialect
        self._inflater = Inflater(encoding, REPLY_LIMIT)
        self._events = Events()
        self._assembler: Assembler = dialect.assembler()
        self._guard = guard
        self._hide_usage = hide_usage
        self._malformed: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the reply's last event has gone by."""
        return self._assembler.ended

    @property
    def rewrites(self) -> bool:
        """Whether what is passed on differs from what came, in its encoding too."""
        return self._hide_usage

    def feed(self, raw: bytes) -> bytes:
        """Read the next bytes; what to pass on of them. Raises ValueError when the rest cannot be read."""
        plain = self._inflater.feed(raw)
        self._guard.check(plain)
        kept = [event for event, data in self._events.feed(plain) if not self._read(data) or not self._hide_usage]
        if not self._hide_usage:
            return raw
        return b"".join(_NO_USAGE.sub(b"", event) for event in kept)

    def end(self) -> bytes:
        """The stream is over: what is still to be passed on."""
        left = self._events.end()
        return left if self._hide_usage else b""

    def so_far(self) -> dict[str, Any]:
        """The reply as it would have come whole, as far as it came."""
        return self._assembler.so_far()

    def answered(self) -> tuple[Answered, str | None]:
        """The reply as far as it came, and what was wrong with it."""
        try:
            answered = self._dialect.read_reply(self._assembler.so_far())
        except (ValueError, RecursionError, TypeError, AttributeError) as err:
            return NOTHING, self._malformed or f"its stream cannot be read: {err}"
        if self._assembler.failed:
            return answered, f"it broke off with an error: {json.dumps(self._assembler.failed)[:2000]}"
        if not self._assembler.whole:
            return answered, self._malformed or "its stream ended in the middle of the reply"
        return answered, None

    def _read(self, data: bytes) -> bool:
        """Take one event in; whether it tells of the usage and nothing else."""
        if data == _DONE:
            self._assembler.ended = True
        if not data or data == _DONE:
            return False
        try:
            event = read_json(data)
            self._assembler.add(event)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as err:
            self._malformed = self._malformed or f"an event of its stream cannot be read: {err}"
            return False
        return event.get("choices") == [] and bool(event.get("usage"))


def read_whole(dialect: Dialect, data: bytes) -> tuple[Answered, str | None]:
    """A reply that came in one piece, and what was wrong with it."""
    try:
        body: Any = read_json(data)
        return dialect.read_reply(body), None
    except ReportedError as err:
        return NOTHING, f"it reports an error: {json.dumps(err.error)}"
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError) as err:
        return NOTHING, str(err) or type(err).__name__
