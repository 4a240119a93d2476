"""One call of a model as it goes on the record: what it cost, how it ended, and where its reply stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal["run", "provider"]
"""Whose a call's failure is, where it is not its asker's: the run lacks something, or the provider failed."""


@dataclass(slots=True)
class Usage:
    """Token counts of one model call, or summed over a rollout's, as the provider reported them."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All tokens, those of the prompt and those of the reply."""
        return self.input + self.output

    # The names that chat completions and tasks of the `verifiers.v1` API use.

    @property
    def prompt_tokens(self) -> int:
        """The same as `input`."""
        return self.input

    @property
    def completion_tokens(self) -> int:
        """The same as `output`."""
        return self.output

    @property
    def total_tokens(self) -> int:
        """The same as `total`."""
        return self.total

    def add(self, other: Usage) -> None:
        """Add another count to this one."""
        self.input += other.input
        self.output += other.output
        self.cached += other.cached
        self.reasoning += other.reasoning


@dataclass(slots=True)
class ModelCall:
    """One request to a model.

    `started` is epoch seconds, `seconds` the time to the end of the reply, `first_byte_seconds` to its beginning.
    `cost_usd` is None when no price is known. `node` is the reply's place in the trace's graph, None when there is
    no reply. `purpose` is "agent", or "judge" for what a verifier asked. `request` holds the parameters that were
    sent beside the messages. `token_ids`, `prompt_token_ids` and `logprobs` are the provider's own, when it returned
    them. `policy` says what was taken out of the request: each a `code` and the JSON `paths` it was at. `refused` is
    the gateway's code for why nothing was sent. `fault` says whose an `error` is, None for its asker's own.
    """

    model: str = ""
    dialect: str = ""
    upstream: str = ""
    purpose: str = "agent"
    request: Mapping[str, Any] = field(default_factory=dict)
    started: float = 0.0
    seconds: float | None = None
    first_byte_seconds: float | None = None
    status_code: int | None = None
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    error: str | None = None
    refused: str | None = None
    fault: Fault | None = None
    node: int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    policy: list[dict[str, Any]] = field(default_factory=list)
