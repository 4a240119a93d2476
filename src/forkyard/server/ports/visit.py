"""A request as the sandbox gets it: without what is between the client and us, and without credentials of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import Scope

from forkyard.sandbox.network.http import HOP_BY_HOP, named_in
from forkyard.server.envelope import ApiError
from forkyard.server.ports.credentials import HEADER, Given

if TYPE_CHECKING:
    from forkyard.server.keys import Keys

Headers = list[tuple[bytes, bytes]]
_OURS = frozenset((b"cookie", HEADER.encode(), b"forwarded", b"x-forwarded-for", b"x-forwarded-host",
                   b"x-forwarded-proto", b"expect"))  # fmt: skip
_DOMAIN = re.compile(rb";\s*domain\s*=[^;]*", re.IGNORECASE)  # a cookie for the zone would be every sandbox's
_SCHEMES = {"ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True)
class Visit:
    """One request."""

    scope: Scope
    given: Given
    keys: Keys

    @property
    def host(self) -> str:
        """The host as the client wrote it."""
        return _host(self.scope)

    @property
    def target(self) -> bytes:
        """Path and query. Raises ApiError 400 for what has none."""
        return _target(self.scope, self.given)

    @property
    def headers(self) -> Headers:
        """Its headers, but for those of the connection."""
        kept = passed(self.scope["headers"], _OURS)
        kept = [(name, value) for name, value in kept if name != b"authorization" or not self._is_key(value)]
        if self.given.cookies:
            kept.append((b"cookie", "; ".join(self.given.cookies).encode("latin-1")))
        client = self.scope.get("client")
        scheme = self.scope["scheme"]
        return [
            *kept,
            (b"x-forwarded-for", (client[0] if client else "unknown").encode()),
            (b"x-forwarded-host", self.host.encode("latin-1")),
            (b"x-forwarded-proto", str(_SCHEMES.get(scheme, scheme)).encode()),
        ]

    def _is_key(self, value: bytes) -> bool:
        """Whether it is a key of this server's, which a client sends everywhere that is told to."""
        text = value.decode("latin-1").strip()
        scheme, _, rest = text.partition(" ")
        return self.keys.find(rest.strip() if scheme.lower() == "bearer" else text) is not None


def address_of(scope: Scope, given: Given) -> str:
    """The whole address of a request, without a token. Raises ApiError 400 for one without a path."""
    return f"{scope['scheme']}://{_host(scope)}{_target(scope, given).decode('latin-1')}"


def _host(scope: Scope) -> str:
    found: bytes = next(value for name, value in scope["headers"] if name == b"host")
    return found.decode("latin-1")


def _target(scope: Scope, given: Given) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.partition(b"?")[0]
    if not path.startswith(b"/"):
        raise ApiError(400, "a request to a port has a path")
    return path + (b"?" + given.query if given.query else b"")


def passed(headers: Headers, without: frozenset[bytes] = frozenset()) -> Headers:
    """Headers of either side, but for those of its connection."""
    low = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in low if name not in HOP_BY_HOP | named_in(low) | without]


def answered_headers(headers: Headers) -> Headers:
    """Headers of a server inside, as its visitor gets them: its cookies are for its own host name alone."""
    return [(name, _DOMAIN.sub(b"", value) if name == b"set-cookie" else value) for name, value in passed(headers)]
