from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from forkyard.harness.claude_code import ClaudeNarrator
from forkyard.harness.codex import CodexNarrator
from forkyard.harness.mini_swe_agent import MiniNarrator
from forkyard.harness.narration import Narrator
from forkyard.trace import Message, Trace

Make = Callable[[Trace], Narrator]


def told(make: Make, *events: Mapping[str, Any]) -> tuple[list[Message], Narrator]:
    trace = Trace(task="t")
    narrator = make(trace)
    for event in events:
        narrator.hear(event)
    return list(trace.messages), narrator


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": fields.pop("id", "item_1"), "type": kind, **fields}}


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def test_codex_says_what_it_thinks_says_and_does_in_one_message() -> None:
    messages, narrator = told(
        CodexNarrator,
        {"type": "thread.started", "thread_id": "x"},
        item("error", message="metadata not found"),
        item("reasoning", text="First"),
        item("reasoning", text="Then"),
        item("agent_message", text="I look."),
        {"type": "item.started", "item": {"id": "item_2", "type": "command_execution", "command": "ls"}},
        item("command_execution", id="item_2", command="ls", aggregated_output="a\n", exit_code=0),
        item("command_execution", id="item_3", command="cat b", aggregated_output="no\n", exit_code=1),
        item("file_change", id="item_4", changes=[{"path": "a", "kind": "update"}], status="completed"),
        item(
            "mcp_tool_call", id="item_5", server="s", tool="t", arguments={"a": 1}, result={"content": []}, error=None
        ),
        item("agent_message", text="Done."),
        {"type": "turn.completed", "usage": {}},
    )
    changes = {"changes": [{"path": "a", "kind": "update"}]}
    assert messages == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "First\n\nThen",
            "tool_calls": [call("item_2", "shell", {"command": "ls"})],
        },
        {"role": "tool", "tool_call_id": "item_2", "content": "exit 0\na\n"},
        {"role": "assistant", "content": None, "tool_calls": [call("item_3", "shell", {"command": "cat b"})]},
        {"role": "tool", "tool_call_id": "item_3", "content": "exit 1\nno\n"},
        {"role": "assistant", "content": None, "tool_calls": [call("item_4", "file_change", changes)]},
        {"role": "tool", "tool_call_id": "item_4", "content": "completed"},
        {"role": "assistant", "content": None, "tool_calls": [call("item_5", "s.t", {"a": 1})]},
        {"role": "tool", "tool_call_id": "item_5", "content": '{"content": []}'},
        {"role": "assistant", "content": "Done."},
    ]
    assert narrator.finished and narrator.failed is None


def test_codex_says_why_a_turn_failed() -> None:
    _, narrator = told(CodexNarrator, {"type": "turn.failed", "error": {"message": "rollout stopped: max_turns"}})
    assert narrator.finished and narrator.failed == "rollout stopped: max_turns"


def assistant(message_id: str, *blocks: Mapping[str, Any], parent: str | None = None) -> dict[str, Any]:
    message = {"id": message_id, "role": "assistant", "content": list(blocks)}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent}


def test_claude_tells_a_reply_block_by_block_and_several_calls_at_once() -> None:
    uses = [{"type": "tool_use", "id": f"u{number}", "name": "Bash", "input": {"command": "ls"}} for number in (1, 2)]
    answers: Iterable[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "u1", "content": "a"},
        {"type": "tool_result", "tool_use_id": "u2", "content": [{"type": "text", "text": "b"}, {"type": "image"}]},
    ]
    messages, narrator = told(
        ClaudeNarrator,
        {"type": "system", "subtype": "init"},
        assistant("m1", {"type": "thinking", "thinking": "Hm", "signature": "x"}),
        assistant("m1", {"type": "text", "text": "I look."}),
        assistant("m1", uses[0]),
        assistant("m1", uses[1]),
        {"type": "user", "message": {"role": "user", "content": list(answers)}},
        assistant("m2", {"type": "text", "text": "Well."}),
        assistant("m3", {"type": "text", "text": "Done."}),
        {"type": "user", "message": {"role": "user", "content": "a reminder"}},
        {"type": "result", "subtype": "success", "is_error": False, "result": "Done."},
    )
    assert messages == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm",
            "tool_calls": [call("u1", "Bash", {"command": "ls"}), call("u2", "Bash", {"command": "ls"})],
        },
        {"role": "tool", "tool_call_id": "u1", "content": "a"},
        {"role": "tool", "tool_call_id": "u2", "content": "b"},
        {"role": "assistant", "content": "Well."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "a reminder"},
    ]
    assert narrator.finished and narrator.failed is None


def test_what_sub_agents_of_claude_say_is_not_the_conversation() -> None:
    messages, _ = told(ClaudeNarrator, assistant("m1", {"type": "text", "text": "inner"}, parent="u1"))
    assert messages == []


@pytest.mark.parametrize(("said", "why"), [({"result": "no key"}, "no key"), ({}, "error_during_execution")])
def test_claude_says_why_it_failed(said: dict[str, Any], why: str) -> None:
    _, narrator = told(
        ClaudeNarrator, {"type": "result", "subtype": "error_during_execution", "is_error": True, **said}
    )
    assert narrator.finished and narrator.failed == why


def test_mini_swe_agent_s_messages_are_taken_as_they_are() -> None:
    calls = [call("c1", "bash", '{"command": "ls"}')]
    messages, narrator = told(
        MiniNarrator,
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "Please solve this: ..."},
        {"role": "assistant", "content": "Hm", "reasoning_content": "Deep", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "{}"},
        {"role": "assistant", "content": "no call"},
        {"role": "user", "content": "Tool call error"},
        {"role": "exit", "exit_status": "Submitted", "content": "text"},
    )
    assert messages == [
        {"role": "assistant", "content": "Hm", "reasoning_content": "Deep", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "{}"},
        {"role": "assistant", "content": "no call"},
        {"role": "user", "content": "Tool call error"},
    ]
    assert narrator.finished and narrator.failed is None


def test_mini_swe_agent_says_why_it_gave_up() -> None:
    _, narrator = told(MiniNarrator, {"role": "exit", "exit_status": "BadRequestError", "content": "stopped"})
    assert narrator.finished and narrator.failed == "BadRequestError: stopped"
