"""What clients send and get of ports; the names are the wire's."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from forkyard.server.bodies import Sent
from forkyard.server.paging import LIMIT
from forkyard.server.sandboxes.values import Endpoint
from forkyard.values import duration

MAX_SECONDS = 8760 * 3600.0


class PortList(BaseModel):
    """The ports of a sandbox that everybody reaches."""

    ports: list[Endpoint]


class TokenRequest(Sent):
    """A token to make; without a `ttl` it is good until it is deleted."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    ttl: str | None = Field(
        None, max_length=40, description='A duration such as "90s", "30m" or "1h30m"; at most "8760h"'
    )


class TokenQuery(BaseModel):
    """Which tokens."""

    limit: int = Field(LIMIT, ge=1)
    cursor: str | None = None


class Token(BaseModel):
    """A token as listings show it."""

    id: str
    port: int
    created_at: datetime
    expires_at: datetime | None


class NewToken(Token):
    """A token with its text, which is shown this once, and where it is good."""

    hostname: str
    token: str = Field(repr=False)


class TokenList(BaseModel):
    """Tokens, oldest first."""

    tokens: list[Token]


def seconds_of(ttl: str) -> float | None:
    """How long a duration is; None for what is none, or none a token can have."""
    seconds = duration(ttl)
    return seconds if seconds is not None and 0 < seconds <= MAX_SECONDS else None
