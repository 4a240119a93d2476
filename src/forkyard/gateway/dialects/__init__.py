"""The languages that models are spoken to in: which request is which, and how each is read."""

from forkyard.gateway.dialects.base import Answered, Asked, Assembler, Dialect
from forkyard.gateway.dialects.chat import ChatDialect
from forkyard.gateway.dialects.messages import MessagesDialect
from forkyard.gateway.dialects.responses import ResponsesDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), ResponsesDialect(), MessagesDialect())
NAMES = tuple(dialect.name for dialect in DIALECTS)
CHAT, RESPONSES, MESSAGES = DIALECTS


def dialect_at(path: str) -> Dialect | None:
    """The dialect of a path without /v1, None when it is no call of a model."""
    return next((dialect for dialect in DIALECTS if dialect.path == path), None)


__all__ = [
    "CHAT",
    "DIALECTS",
    "MESSAGES",
    "NAMES",
    "RESPONSES",
    "Answered",
    "Asked",
    "Assembler",
    "Dialect",
    "dialect_at",
]
