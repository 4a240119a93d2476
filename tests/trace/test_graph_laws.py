"""What holds of the graph whatever calls are put into it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.trace import Message, ModelCall, Trace
from forkyard.values import strict_json

WORDS = st.sampled_from("ab")
IDS = st.lists(st.integers(1, 3), max_size=6)
MESSAGES = st.lists(
    st.builds(lambda role, word: {"role": role, "content": word}, st.sampled_from(["user", "assistant"]), WORDS),
    min_size=1,
    max_size=4,
)
CALLS = st.lists(st.tuples(MESSAGES, WORDS, st.none() | IDS, IDS, st.booleans()), max_size=8)


def put(
    trace: Trace, call: tuple[list[Message], str, list[int] | None, list[int], bool]
) -> tuple[int, list[Any], list[int]]:
    """Commit a call, sometimes going on from the last history; the reply's node, its messages and its tokens."""
    messages, word, prompt, sampled, goes_on = call
    if goes_on and (main := trace.graph.main):
        messages = [*main.messages, *messages]
        prompt = None if prompt is None else [*main.token_ids, *prompt]
    reply = {"role": "assistant", "content": word}
    node = trace.graph.commit(
        messages, reply, prompt_token_ids=prompt, token_ids=sampled, logprobs=[0.5] * len(sampled)
    )
    trace.record_call(ModelCall(node=node, prompt_token_ids=prompt, token_ids=sampled))
    known = [] if not prompt else [*prompt, *sampled]
    return node, [*messages, reply], known


@settings(max_examples=100, deadline=None)
@given(CALLS, st.integers(0, 3))
def test_each_call_stands_in_a_history_of_its_very_messages_and_tokens(calls: list[Any], told: int) -> None:
    trace = Trace()
    put_in = [put(trace, call) for call in calls]
    for node, messages, tokens in put_in:
        path = [trace.graph.nodes[at] for at in trace.graph.path(node)]
        assert [step.message for step in path] == messages
        assert path[-1].sampled
        if tokens:
            assert [token for step in path for token in step.token_ids] == tokens
    assert trace.graph.turns == len(calls), "each call is one sampled node"
    prefixes = {
        (node.parent, node.message["content"], node.message["role"], tuple(node.token_ids))
        for node in trace.graph.nodes
        if not node.sampled
    }
    assert len(prefixes) == sum(not node.sampled for node in trace.graph.nodes), "nothing stands there twice"
    for branch in trace.branches:
        assert len(branch.token_ids) == len(branch.sampled_mask) == len(branch.logprobs)
    if (main := trace.graph.main) is not None:
        trace.messages.extend(main.messages[: len(main.messages) - told])
    record = trace.to_record()
    again = Trace.from_record(json.loads(strict_json(record)))
    assert again.to_record() == record
    assert [(b.messages, b.token_ids, b.sampled_mask, len(b.calls)) for b in again.branches] == [
        (b.messages, b.token_ids, b.sampled_mask, len(b.calls)) for b in trace.branches
    ]
