"""How many tokens a prompt can have at most, before anybody has counted them."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass

from forkyard.gateway.dialects.base import Body

REMEMBERED = 8
_STORED = ("previous_response_id", "conversation")


_MARK = re.compile(r', "cache_control": \{[^{}]*\}')  # clients move these from call to call


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's size: a key and a length for each message, the first being everything beside the messages."""

    keys: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: bool  # the provider adds a conversation that it keeps itself


def measure(body: Body) -> Prompt:
    """The size of the prompt in a request."""
    rest = dict(body)
    talk = [rest.pop(name, None) for name in ("messages", "input")]
    items = [item for given in talk if given for item in (given if isinstance(given, list) else [given])]
    texts = [_MARK.sub("", json.dumps(item)) for item in (rest, *items)]
    stored = any(body.get(name) for name in _STORED)
    return Prompt(tuple(map(hash, texts)), tuple(map(len, texts)), stored)


class Prompts:
    """Remembers what the prompts of one route came to.

    No token is shorter than a byte. Of a prompt that goes on from an earlier one only the new messages are taken for
    one token a byte, since the provider has counted the rest. Images by URL count for more than their bytes once a
    call has shown it.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[Prompt, int]] = deque(maxlen=REMEMBERED)
        self._most = 0
        self._per_byte = 1.0

    def at_most(self, prompt: Prompt) -> int:
        """An upper estimate of a prompt's tokens."""
        rest, counted = sum(prompt.sizes), 0
        for known, tokens in self._known:
            length = len(known.keys)
            left = sum(prompt.sizes[length:])
            if prompt.keys[:length] == known.keys and left < rest:
                rest, counted = left, tokens
        return counted + int(rest * self._per_byte) + (self._most if prompt.stored else 0)

    def learn(self, prompt: Prompt, tokens: int, total: int) -> None:
        """What the provider says a prompt came to, and the prompt with its reply."""
        self._known.append((prompt, tokens))
        self._most = max(self._most, total)
        if not prompt.stored:
            self._per_byte = max(self._per_byte, tokens / max(sum(prompt.sizes), 1))
