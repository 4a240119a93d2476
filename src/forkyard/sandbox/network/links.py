"""One connection through the door: how far it may go, where it leads, and how its client is told."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass, field

from forkyard.sandbox.network import http, socks
from forkyard.sandbox.network.addresses import Address
from forkyard.sandbox.network.rules import Rule
from forkyard.sandbox.network.streams import Stream


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the host one sandbox's door may take; times in seconds."""

    connections: int = 128
    head: float = 15.0  # for a request's head, and for the first message of a tunnel
    connect: float = 15.0  # for one address, and for a name
    idle: float = 300.0  # without a byte either way
    total: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client is told what became of its tunnel."""

    granted: bytes
    refused: Callable[[int, str], bytes]


HTTP = Manner(b"HTTP/1.1 200 Connection established\r\n\r\n", http.answer)
SOCKS = Manner(
    socks.reply(socks.GRANTED),
    lambda status, reason: socks.reply(socks.UNREACHABLE if status == 502 else socks.REFUSED),
)


class RefusedError(Exception):
    """This client gets no connection; `status` is HTTP's word for it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(eq=False, slots=True)
class Link:
    """One connection from inside, and where it leads as far as that is known."""

    client: Stream
    host: str | None = None
    port: int = 0
    address: Address | None = None
    checked: bool = False  # it is TLS, made out to `host`
    raw: bool = False  # it carries whatever it likes
    rule: Rule | None = None  # it goes by this rule
    server: Stream | None = None
    manner: Manner = field(default=HTTP)


class Everywhere:
    """The connections of all doors: together they may take a part only of what this process can open."""

    open = 0

    @classmethod
    def full(cls) -> bool:
        """Whether there are as many as may be."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls.open >= (soft if soft > 0 else 1 << 20) // 8
