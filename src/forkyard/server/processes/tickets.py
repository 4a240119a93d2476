"""Tickets for process sockets: signed, for one sandbox, good for a short while and for one socket."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
import time
import uuid

SECONDS = 60.0
_CLAIM = struct.Struct(">16s8sd12s")  # of which sandbox, with which key, until when, which one
_SIGNATURE = 32


class Tickets:
    """Sells and takes tickets. They end with it: what was taken before is known to nobody after it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._taken: dict[bytes, float] = {}

    def sell(self, sandbox_id: str, key_id: str) -> tuple[str, float]:
        """A ticket for a sandbox, bought with an API key, and when it expires (epoch seconds)."""
        until = time.time() + SECONDS
        claim = _CLAIM.pack(uuid.UUID(sandbox_id).bytes, bytes.fromhex(key_id), until, secrets.token_bytes(12))
        return base64.urlsafe_b64encode(claim + self._sign(claim)).decode().rstrip("="), until

    def take(self, ticket: str) -> tuple[str, str] | None:
        """The sandbox a ticket is for, and the API key; None for none of ours, one too old, or taken before."""
        try:
            whole = base64.b64decode(ticket + "=" * (-len(ticket) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        claim, signature = whole[:-_SIGNATURE], whole[-_SIGNATURE:]
        if len(claim) != _CLAIM.size or not hmac.compare_digest(signature, self._sign(claim)):
            return None
        sandbox, key, until, _ = _CLAIM.unpack(claim)
        now = time.time()
        while self._taken and self._taken[oldest := next(iter(self._taken))] <= now:
            del self._taken[oldest]
        if until <= now or claim in self._taken:
            return None
        self._taken[claim] = until
        return str(uuid.UUID(bytes=sandbox)), key.hex()

    def _sign(self, claim: bytes) -> bytes:
        return hmac.digest(self._key, claim, "sha256")
