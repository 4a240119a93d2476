"""Which headers go on to the provider, and which come back."""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.gateway.decoding import READABLE
from forkyard.sandbox.network.http import HOP_BY_HOP, named_in

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""

# Whoever the client says it is, and wherever it thinks it is: the provider hears of the gateway alone. A key of a
# request is for the gateway (see `replays`): at the provider, two rollouts that choose the same would share a reply.
_CLIENTS_OWN = frozenset(
    b"authorization x-api-key api-key x-goog-api-key openai-organization openai-project cookie host content-length "
    b"expect accept-encoding forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip "
    b"idempotency-key".split()
)
_PROVIDERS_OWN = frozenset((b"set-cookie", b"alt-svc"))


def onward(headers: Headers, own: dict[str, str], *, plain: bool, rewritten: bool) -> list[tuple[bytes, bytes]]:
    """A client's headers as they go to the provider, with the gateway's own.

    `plain` asks for a reply that is not compressed; `rewritten` says that the body is no longer compressed.
    """
    left_out = HOP_BY_HOP | _CLIENTS_OWN | named_in(headers) | ({b"content-encoding"} if rewritten else set())
    kept = [(name, value) for name, value in headers if name not in left_out]
    accepted = b"identity" if plain else _readable(value_of(headers, b"accept-encoding"))
    kept.append((b"accept-encoding", accepted))
    return kept + [(name.encode(), value.encode()) for name, value in own.items()]


def back(headers: Iterable[tuple[bytes, bytes]], *, rewritten: bool) -> Headers:
    """A provider's headers as they come back; a rewritten body has another length and no compression."""
    given = [(name.lower(), value) for name, value in headers]
    changed = {b"content-length", b"content-encoding"} if rewritten else set()
    left_out = HOP_BY_HOP | _PROVIDERS_OWN | named_in(given) | changed
    return [(name, value) for name, value in given if name not in left_out]


def without_keys(headers: Headers, keys: Iterable[str]) -> Headers:
    """The headers of a reply without those that hold a key: proxies that are to be debugged send back what they got."""
    raw = [key.encode().lower() for key in keys]
    return [(name, value) for name, value in headers if not any(key in name or key in value.lower() for key in raw)]


def value_of(headers: Headers, name: bytes) -> str:
    """The value of a header, all of them when it is there more than once, "" when it is not."""
    return ", ".join([value.decode("latin-1") for key, value in headers if key == name])


def token_of(headers: Headers) -> str:
    """What a client gives as its key, "" for none."""
    bearer = value_of(headers, b"authorization")
    return bearer.partition(" ")[2].strip() if bearer else value_of(headers, b"x-api-key")


def _readable(accepted: str) -> bytes:
    offered = [word.strip() for word in accepted.split(",")]
    kept = [word for word in offered if word.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept).encode("latin-1") or b"identity"
