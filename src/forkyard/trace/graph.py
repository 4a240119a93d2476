"""The graph of what models were told and said: every history a rollout had, each message once.

A node is a message under its parent, so a path from a root to a leaf is one history: a *branch*, which is one sample
to train on. Calls whose messages begin alike share nodes; from the first difference on they have nodes of their own.
Different are: content, reasoning, tool calls (their arguments compared as JSON), provider state, the tools offered at
the root, and the token ids when the provider returned them, so what a model sampled is never passed off as the ids that
the same text has when it is encoded again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forkyard.trace.calls import ModelCall, Usage
from forkyard.trace.messages import AnyMessage, Message, Messages, message_key, typed

ToolSpecs = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Node:
    """One message in the place it has in a history.

    `sampled` says that a model said it in this rollout; an assistant's message that came with a prompt is not.
    `token_ids` are the tokens that this message adds to those of its parents, empty when the provider told none; a
    prompt's new tokens all stand at its last message. `tools` are on roots only.
    """

    message: AnyMessage
    parent: int | None = None
    sampled: bool = False
    timestamp: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def mask(self) -> list[bool]:
        """For each token whether the model sampled it."""
        return [self.sampled] * len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Branch:
    """One history from its root on, and the calls whose replies stand in it."""

    index: int
    nodes: list[Node]
    calls: list[ModelCall] = field(default_factory=list)

    @property
    def messages(self) -> Messages:
        """Its messages in order."""
        return [node.message for node in self.nodes]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The tools that were offered."""
        return self.nodes[0].tools if self.nodes else []

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the whole history, as the provider told them."""
        return [token for node in self.nodes for token in node.token_ids]

    @property
    def sampled_mask(self) -> list[bool]:
        """For each token whether the model sampled it; those of prompts, tools and users are not."""
        return [sampled for node in self.nodes for sampled in node.mask]

    @property
    def logprobs(self) -> list[float]:
        """For each token its log probability, 0.0 where none was told."""
        return [
            value
            for node in self.nodes
            for value in (node.logprobs if len(node.logprobs) == len(node.token_ids) else [0.0] * len(node.token_ids))
        ]

    @property
    def usage(self) -> Usage:
        """The tokens of its calls."""
        total = Usage()
        for call in self.calls:
            total.add(call.usage)
        return total

    @property
    def num_turns(self) -> int:
        """How many replies of the model stand in it."""
        return sum(node.sampled for node in self.nodes)


class Graph:
    """Every history of one rollout. Grows by `commit` only; `nodes` is in the order of their making."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._children: dict[int | None, list[int]] = {}
        self._keys: dict[int, str] = {}

    def commit(
        self,
        messages: Sequence[Message],
        reply: Message | None,
        *,
        tools: ToolSpecs = (),
        prompt_token_ids: Sequence[int] | None = None,
        token_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
    ) -> int:
        """Put one call's prompt and reply into the graph; the index of the reply's node.

        Without a reply it is that of the last message. `token_ids` count only beside the prompt's, without which
        nobody can say what they follow. Raises ValueError when there is nothing to put.
        """
        ids = list(prompt_token_ids or ())
        path, used = self._shared(messages, tools, ids)
        if len(path) == len(messages) and path and used < len(ids):
            used -= len(self.nodes[path.pop()].token_ids)  # the prompt ends otherwise: its last message is another's
        parent = path[-1] if path else None
        for position, message in enumerate(messages[len(path) :], len(path)):
            last = position == len(messages) - 1
            node = Node(typed(message), parent, token_ids=ids[used:] if last else [])
            parent = self._add(node, tools)
        if reply is not None:
            node = Node(typed(reply), parent, sampled=True)
            if ids and token_ids:
                node.token_ids, node.logprobs = list(token_ids), list(logprobs or ())
            parent = self._add(node, tools)
        if parent is None:
            raise ValueError("there is neither a message nor a reply to put into the graph")
        return parent

    def known(self, messages: Sequence[Message], tools: ToolSpecs = ()) -> int:
        """How many messages, from the first on, are in the graph already."""
        return len(self._shared(messages, tools, ())[0])

    def path(self, node: int) -> list[int]:
        """The nodes from the root to a node."""
        path, at = [], node
        while True:
            path.append(at)
            parent = self.nodes[at].parent
            if parent is None:
                return path[::-1]
            at = parent

    @property
    def leaves(self) -> list[int]:
        """The nodes where histories end."""
        return [index for index in range(len(self.nodes)) if not self._children.get(index)]

    @property
    def turns(self) -> int:
        """How many replies models gave."""
        return sum(node.sampled for node in self.nodes)

    def branches(self, calls: Sequence[ModelCall] = ()) -> list[Branch]:
        """Every history, in the order of their ends."""
        return [self._branch(number, leaf, calls) for number, leaf in enumerate(self.leaves)]

    @property
    def main(self) -> Branch | None:
        """The history of the last reply; None when there is none."""
        last = next((index for index in reversed(range(len(self.nodes))) if self.nodes[index].sampled), None)
        return None if last is None else self._branch(0, last, ())

    def restore(self, nodes: Sequence[Node]) -> None:
        """Take nodes as they were in another graph."""
        for node in nodes:
            self._add(node, node.tools)

    def _branch(self, number: int, leaf: int, calls: Sequence[ModelCall]) -> Branch:
        path = self.path(leaf)
        on_path = set(path)
        return Branch(number, [self.nodes[at] for at in path], [call for call in calls if call.node in on_path])

    def _add(self, node: Node, tools: ToolSpecs) -> int:
        index = len(self.nodes)
        node.message = node.message.model_copy()  # a harness may change its own later
        node.timestamp = node.timestamp or time.time()
        if node.parent is None:
            node.tools = list(tools)
        self.nodes.append(node)
        self._children.setdefault(node.parent, []).append(index)
        return index

    def _shared(self, messages: Sequence[Message], tools: ToolSpecs, ids: Sequence[int]) -> tuple[list[int], int]:
        """The nodes that a prompt's first messages are already, and how many of its tokens these cover."""
        path: list[int] = []
        used = 0
        for message in messages:
            alike = [at for at in self._children.get(path[-1] if path else None, ()) if self._goes_on(at, used, ids)]
            same = [at for at in alike if (path or _same_tools(self.nodes[at].tools, tools)) and self._is(at, message)]
            if not same:
                break
            # Of several the one that says most about the prompt's tokens, and then the last.
            path.append(max(same, key=lambda at: (len(self.nodes[at].token_ids) if ids else 0, at)))
            used += len(self.nodes[path[-1]].token_ids)
        return path, used

    def _goes_on(self, index: int, used: int, ids: Sequence[int]) -> bool:
        """Whether a node's tokens, if both they and the prompt's are known, are those that come next in the prompt."""
        own = self.nodes[index].token_ids
        return not (ids and own) or ids[used : used + len(own)] == own

    def _is(self, index: int, message: Message) -> bool:
        return self.nodes[index].message == message or self._key(index) == message_key(message)

    def _key(self, index: int) -> str:
        if index not in self._keys:
            self._keys[index] = message_key(self.nodes[index].message)
        return self._keys[index]


def _same_tools(one: ToolSpecs, other: ToolSpecs) -> bool:
    return list(one) == list(other) or _tools_key(one) == _tools_key(other)


def _tools_key(tools: ToolSpecs) -> str:
    return json.dumps(list(tools), sort_keys=True, default=str)


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Each reward less the mean of its group; one that is missing has none and does not count in the mean."""
    given = [reward for reward in rewards if reward is not None]
    mean = sum(given) / len(given) if given else 0.0
    return [None if reward is None else reward - mean for reward in rewards]
