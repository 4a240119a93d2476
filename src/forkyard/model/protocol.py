"""What a model is to a harness: one method from messages to a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

from forkyard.trace import Message, Usage

ToolSpec = Mapping[str, Any]
"""A tool as chat completions describe it: {"type": "function", "function": {name, description, parameters}}."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample; None leaves the provider's default. `extra` is merged into the request body."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What values by name say; those under other names are the extra ones."""
        own = {each.name for each in fields(cls)} - {"extra"}
        known = {name: value for name, value in values.items() if name in own}
        return cls(**known, extra={name: value for name, value in values.items() if name not in own})


PLAIN = Sampling()
"""As the provider samples by itself."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: the assistant's message as received and its cost in tokens; `waited_ms` were paused between tries.

    `recorded` says that whoever carried the call has put it on the rollout's record.
    """

    message: Message
    usage: Usage
    finish_reason: str | None = None
    retries: int = 0
    waited_ms: float = 0.0
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a program reaches a model by HTTP: for one inside a sandbox an address of its own loopback.

    `base_url` is the part before /v1. Clients want a key: `key` is one that opens nothing anywhere else.
    """

    base_url: str
    model: str
    key: str = "forkyard"


OnFailure = Callable[[str, float], object]
"""Told in one sentence what went wrong with a request, and for how many seconds the provider asked to be left alone."""


class Model(Protocol):
    """Answers a conversation. Raises a `ModelError` (or one of its kinds) once retrying cannot help."""

    @property
    def name(self) -> str:
        """The model's name as it goes on the record."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling = PLAIN,
        on_failure: OnFailure | None = None,
    ) -> Reply:
        """The model's next message. `on_failure` hears of each failure that is tried again."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
