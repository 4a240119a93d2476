"""The graph of messages: what shares a node, what forks, and what of it stands on a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkyard.trace import Graph, Message, ModelCall, Reward, Status, Trace, Usage, advantages
from forkyard.values import strict_json

TABLE = Path(__file__).parents[1] / "cases" / "tables" / "tokens.json"
TOKENS = {row["name"]: row for row in json.loads(TABLE.read_text())}
HELLO: Message = {"role": "user", "content": "hello"}
MORE: Message = {"role": "user", "content": "more"}


def said(content: str | None, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def calling(arguments: str, id: str = "c1") -> Message:
    return said(None, tool_calls=[{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}])


def shapes(graph: Graph) -> list[list[str]]:
    return [[node.message.text for node in branch.nodes] for branch in graph.branches()]


def test_messages_that_begin_alike_share_their_nodes() -> None:
    graph = Graph()
    assert graph.commit([HELLO], said("a")) == 1
    assert graph.commit([HELLO, said("a"), MORE], said("b")) == 3
    assert graph.commit([HELLO, said("a"), HELLO], said("c")) == 5
    assert shapes(graph) == [["hello", "a", "more", "b"], ["hello", "a", "hello", "c"]]
    assert graph.turns == 3
    assert graph.main is not None and [node.message.text for node in graph.main.nodes] == ["hello", "a", "hello", "c"]


@pytest.mark.parametrize(
    ("reply", "history"),
    [
        (said("a"), said("b")),
        (said("a", reasoning_content="hm"), said("a")),
        (said("a", provider_state=[{"signature": "x"}]), said("a")),
        (calling('{"a": 1}'), calling('{"a": 2}')),
        (calling("{}"), calling("{}", "c2")),
        (calling("{]"), calling("{}")),
    ],
)
def test_any_difference_that_a_model_can_see_forks(reply: Message, history: Message) -> None:
    graph = Graph()
    graph.commit([HELLO], reply)
    graph.commit([HELLO, history, MORE], said("end"))
    assert len(graph.branches()) == 2
    assert graph.turns == 2, "what came with a prompt is no turn"


@pytest.mark.parametrize(
    ("reply", "history"),
    [
        (calling('{"a":1, "b": [2]}'), calling('{"b": [2], "a": 1}')),
        (said("a", refusal=None, annotations=[]), said("a")),
        (said(None), said("")),
        (said("a"), {"role": "assistant", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}),
    ],
)
def test_a_difference_of_spelling_does_not_fork(reply: Message, history: Message) -> None:
    graph = Graph()
    graph.commit([HELLO], reply)
    assert graph.known([HELLO, history, MORE]) == 2
    graph.commit([HELLO, history, MORE], said("end"))
    assert len(graph.branches()) == 1


def test_other_tools_are_another_history() -> None:
    graph = Graph()
    graph.commit([HELLO], said("a"), tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    graph.commit([HELLO], said("a"), tools=[{"function": {"parameters": {}, "name": "f"}, "type": "function"}])
    graph.commit([HELLO], said("a"))
    assert [branch.tools != [] for branch in graph.branches()] == [True, True, False]
    assert [node.message.text for node in graph.nodes] == ["hello", "a", "a", "hello", "a"]


def test_the_same_reply_to_the_same_prompt_is_sampled_twice() -> None:
    graph = Graph()
    assert {graph.commit([HELLO], said("a")), graph.commit([HELLO], said("a"))} == {1, 2}


def test_a_history_compacted_by_its_harness_is_another_branch_under_the_same_root() -> None:
    graph = Graph()
    graph.commit([HELLO], said("a"))
    graph.commit([HELLO, {"role": "user", "content": "summary"}], said("b"))
    assert shapes(graph) == [["hello", "a"], ["hello", "summary", "b"]]


def test_what_a_harness_changes_later_does_not_change_the_graph() -> None:
    graph, mine = Graph(), dict(HELLO)
    graph.commit([mine], said("a"))
    mine["content"] = "shortened"
    assert graph.nodes[0].message.text == "hello"


def test_a_failed_call_commits_its_prompt_alone_when_asked_to() -> None:
    graph = Graph()
    assert graph.commit([HELLO], None) == 0
    assert (graph.turns, graph.main) == (0, None)
    with pytest.raises(ValueError, match="neither a message nor a reply"):
        graph.commit([], None)


def turns_of(name: str) -> Graph:
    """The turns of a row of the table as calls: the history of the second holds the same text."""
    graph, talk = Graph(), [HELLO]
    for turn in TOKENS[name]["turns"]:
        reply = said("".join(TOKENS[name]["vocab"][str(token)] for token in turn["sampled_ids"]))
        graph.commit(talk, reply, prompt_token_ids=turn["prompt_ids"], token_ids=turn["sampled_ids"])
        talk = [*talk, reply, {"role": "tool", "tool_call_id": "c", "content": "c"}]
    return graph


def test_tokens_of_tools_and_users_are_masked() -> None:
    (branch,) = turns_of("tool and user tokens").branches()
    expected = TOKENS["tool and user tokens"]["expect"]
    assert branch.token_ids == expected["ids"]
    assert [int(sampled) for sampled in branch.sampled_mask] == expected["mask"]


def test_the_same_text_with_other_ids_is_two_samples_and_sampled_ids_are_kept() -> None:
    row = TOKENS["same text, other ids"]
    first, second = turns_of("same text, other ids").branches()
    for branch, turn in zip((first, second), row["turns"], strict=True):
        assert branch.token_ids == turn["prompt_ids"] + turn["sampled_ids"]
        assert branch.sampled_mask == [False] * len(turn["prompt_ids"]) + [True] * len(turn["sampled_ids"])


def test_a_retokenised_history_forks() -> None:
    graph = Graph()
    graph.commit([HELLO], said("x"), prompt_token_ids=[1, 2, 3], token_ids=[4, 5], logprobs=[-0.1, -0.2])
    graph.commit([HELLO, said("x"), MORE], said("y"), prompt_token_ids=[1, 2, 3, 99, 5, 6], token_ids=[7, 8])
    assert [branch.token_ids for branch in graph.branches()] == [[1, 2, 3, 4, 5], [1, 2, 3, 99, 5, 6, 7, 8]]
    assert graph.branches()[0].logprobs == [0.0, 0.0, 0.0, -0.1, -0.2]
    assert [node.sampled for node in graph.nodes] == [False, True, False, False, True]


def test_a_prompt_that_ends_in_other_tokens_is_another_history() -> None:
    graph = Graph()
    graph.commit([HELLO], said("x"), prompt_token_ids=[1, 2], token_ids=[4])
    graph.commit([HELLO], said("y"), prompt_token_ids=[1, 2, 3], token_ids=[5])
    assert [branch.token_ids for branch in graph.branches()] == [[1, 2, 4], [1, 2, 3, 5]]


def test_tokens_told_by_some_calls_only_never_make_a_history_with_a_gap() -> None:
    graph = Graph()
    graph.commit([HELLO], said("x"))
    graph.commit([HELLO, said("x"), MORE], said("y"), prompt_token_ids=[1, 2, 3, 4], token_ids=[5])
    (branch,) = graph.branches()
    assert (branch.token_ids, branch.sampled_mask) == ([1, 2, 3, 4, 5], [False] * 4 + [True])
    graph.commit([HELLO], said("z"), token_ids=[9])
    assert graph.branches()[1].token_ids == [], "nobody said what they follow"


def test_an_error_in_a_group_shifts_no_baseline() -> None:
    expected = TOKENS["group with an error"]["expect"]
    assert advantages(expected["rewards"]) == pytest.approx(expected["advantages"])
    assert advantages([None]) == [None]


def linear() -> Trace:
    """Two calls of one conversation, as a harness in this process leaves them."""
    trace = Trace(task="t", messages=[HELLO])
    for reply, more in ((said("a"), MORE), (said("b"), None)):
        call = ModelCall(model="m", dialect="chat", usage=Usage(3, 1), seconds=0.12345, request={"temperature": 0})
        call.node = trace.graph.commit(trace.messages, reply)
        trace.record_call(call)
        trace.messages.append(reply)
        if more:
            trace.messages.append(more)
    return trace


def test_a_plain_conversation_stands_on_its_line_once() -> None:
    trace = linear()
    record = trace.to_record()
    assert record["branches"] is None and record["tools"] is None
    assert record["calls"] == [
        {
            "model": "m",
            "dialect": "chat",
            "purpose": "agent",
            "request": {"temperature": 0},
            "started": 0.0,
            "seconds": 0.123,
            "usage": {"input": 3, "output": 1},
            "node": node,
        }
        for node in (1, 3)
    ]
    assert strict_json(record).count("hello") == 1
    assert len(strict_json(record)) < 1800
    again = Trace.from_record(json.loads(strict_json(record)))
    assert [node.sampled for node in again.graph.nodes] == [False, True, False, True]
    assert (again.num_turns, again.num_branches, again.branches[0].num_turns) == (2, 1, 2)


def branched() -> Trace:
    """Two histories with tokens and tools, one of which is the conversation, and a judge's call."""
    tool = {"type": "function", "function": {"name": "f"}}
    trace = Trace(task="t", status=Status.SCORED, rewards={"r": Reward(0.5, 2.0), "seeded": None})
    prompts: list[tuple[list[Message], list[int]]] = [([HELLO], [1, 2]), ([HELLO, said("a"), MORE], [1, 2, 9, 4])]
    for (messages, ids), reply in zip(prompts, (said("a"), said("b")), strict=True):
        call = ModelCall(model="m", prompt_token_ids=ids, token_ids=[3], logprobs=[-0.5], finish_reason="stop")
        call.node = trace.graph.commit(
            messages, reply, tools=[tool], prompt_token_ids=ids, token_ids=[3], logprobs=[-0.5]
        )
        trace.record_call(call)
    trace.record_call(ModelCall(model="j", purpose="judge", usage=Usage(100, 1), cost_usd=0.5))
    assert trace.graph.main is not None
    trace.messages.extend(trace.graph.main.messages)
    trace.graph.commit([HELLO], said("elsewhere"))
    return trace


def test_two_branches_survive_the_line_and_no_message_is_written_twice() -> None:
    trace = branched()
    text = strict_json(trace.to_record())
    assert (text.count('"hello"'), text.count('"elsewhere"'), text.count('"f"')) == (1, 1, 1)
    again = Trace.from_record(json.loads(text))
    assert again.to_record() == trace.to_record()
    for before, after in zip(trace.branches, again.branches, strict=True):
        assert before.messages == after.messages
        assert (before.token_ids, before.sampled_mask) == (after.token_ids, after.sampled_mask)
        assert (before.logprobs, before.tools) == (after.logprobs, after.tools)
    assert [len(branch.calls) for branch in again.branches] == [1, 1, 0]


def test_a_judges_calls_cost_money_and_are_no_turns_of_the_agent() -> None:
    trace = branched()
    assert (trace.steps, trace.usage.input, trace.cost_usd) == (2, 0, 0.5)


def test_a_seeded_reward_and_every_other_field_survive_the_line() -> None:
    trace = linear()
    trace.rewards = {"r": Reward(1.0, 0.5), "seeded": None}
    trace.metrics = {"m": 1.0, "none": None}
    trace.record_error(ValueError("x"))
    trace.record_timeout("agent")
    trace.settle(Status.SCORING_ERROR, "why")
    trace.timing.fork_ms, trace.info["logs"] = 1.5, ["a"]
    trace.state = object()
    again = Trace.from_record(json.loads(strict_json(trace.to_record())))
    assert again.to_record() == trace.to_record()
    assert again.rewards == trace.rewards
    assert again.status is Status.SCORING_ERROR
    assert again.state is None, "never on a line"


def test_a_line_of_an_older_version_is_read() -> None:
    record = linear().to_record()
    for name in ("calls", "tools", "branches"):
        del record[name]
    again = Trace.from_record(record)
    assert (again.num_turns, again.last_reply, again.calls) == (2, "b", [])
    assert [branch.messages for branch in again.branches] == [again.messages]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": None},
        {"status": "GREAT"},
        {"branches": [{"at": 99}]},
        {"branches": [{"at": 0, "parent": 0}]},
        {"rewards": {"r": {"points": 1}}},
        {"calls": [{"node": 0, "colour": "red"}]},
    ],
)
def test_what_is_no_line_is_refused_in_a_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="this is no line of a rollout"):
        Trace.from_record({**linear().to_record(), **change})
    with pytest.raises(ValueError, match="KeyError: 'status'"):
        Trace.from_record({})
