"""What rewards of tasks read from a trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import BaseModel

from forkyard.trace import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    ModelCall,
    SystemMessage,
    TextContentPart,
    ToolCall,
    ToolMessage,
    Trace,
    Usage,
    UserMessage,
)
from forkyard.trace.record import bare_record_of

CALL = ToolCall("c1", "add", '{"a": 1}')


def talk() -> Trace:
    return Trace(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "add "}, {"type": "text", "text": "it"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [dict(CALL)]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": "three"},
        ]
    )


def test_messages_are_read_by_attribute_and_by_class() -> None:
    trace = talk()
    assert [type(message) for message in trace.messages] == [
        SystemMessage,
        UserMessage,
        AssistantMessage,
        ToolMessage,
        AssistantMessage,
    ]
    calls = trace.assistant_messages[0].tool_calls
    assert calls is not None
    (call,) = calls
    assert (call.id, call.name, call.arguments) == ("c1", "add", '{"a": 1}')
    assert (trace.assistant_messages[0].content, trace.assistant_messages[0].reasoning_content) == (None, "hm")
    assert trace.assistant_messages[1].tool_calls is None
    assert [message.tool_call_id for message in trace.tool_messages] == ["c1"]
    assert (trace.last_reply, trace.root_reply, trace.last_message) == ("three", "three", trace.messages[-1])
    with pytest.raises(AttributeError, match="has no 'colour'; it has role, content"):
        _ = trace.assistant_messages[1].colour


def test_messages_made_by_class_are_the_plain_dictionaries() -> None:
    made = [
        SystemMessage("be brief"),
        UserMessage(content="x"),
        AssistantMessage(content=None, tool_calls=[CALL]),
        ToolMessage(tool_call_id="c1", content="3"),
    ]
    assert made == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    changed = made[3].model_copy(update={"content": "4"})
    assert (made[3].content, changed.content, type(changed)) == ("3", "4", ToolMessage)


def test_images_and_texts_are_parts_of_a_message() -> None:
    parts = [ImageUrlContentPart(image_url=ImageUrlSource(url="data:image/png;base64,x")), TextContentPart(text="look")]
    assert UserMessage(content=parts) == {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}},
            {"type": "text", "text": "look"},
        ],
    }
    assert (UserMessage(parts).text, TextContentPart("x").text) == ("look", "x")


def test_a_message_put_into_a_trace_in_any_way_has_its_class() -> None:
    trace = Trace()
    plain: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    trace.messages.append(plain[0])
    trace.messages.extend(plain)
    trace.messages.insert(0, plain[0])
    trace.messages[0] = plain[0]
    trace.messages[1:2] = plain
    trace.messages += plain
    assert {type(message) for message in trace.messages} == {UserMessage}
    assert {type(message) for message in copy.deepcopy(trace).messages} == {UserMessage}


def test_the_transcript_tells_who_said_what_without_reasoning() -> None:
    assert talk().transcript == (
        'system: be brief\n\nuser: add it\n\nassistant:\ncalls add({"a": 1})\n\ntool: 3\n\nassistant: three'
    )


def test_turns_and_tokens_are_those_of_the_agents_calls() -> None:
    trace = talk()
    assert (trace.num_turns, trace.num_branches) == (0, 1), "nobody called a model"
    trace.record_call(ModelCall(usage=Usage(10, 2)))
    trace.record_call(ModelCall(usage=Usage(12, 3), error="boom"))
    assert (trace.num_turns, trace.num_input_tokens, trace.num_output_tokens, trace.num_total_tokens) == (1, 22, 5, 27)
    assert (trace.usage.prompt_tokens, trace.usage.completion_tokens, trace.usage.total_tokens) == (22, 5, 27)
    assert (Trace().num_branches, Trace().root_reply, Trace().last_message) == (0, None, None)


@pytest.mark.parametrize(
    ("stop", "finish", "truncated"),
    [("max_turns", "stop", True), ("agent_completed", "length", True), ("agent_completed", "stop", False)],
)
def test_a_trace_knows_whether_it_was_cut_short(stop: str, finish: str, truncated: bool) -> None:
    trace = Trace()
    assert not trace.is_completed
    trace.record_call(ModelCall(finish_reason=finish))
    trace.record_call(ModelCall(finish_reason="length", purpose="judge"))
    trace.stop(stop)
    assert (trace.is_truncated, trace.is_completed) == (truncated, True)


def test_the_last_error_is_read_by_attribute() -> None:
    trace = Trace()
    assert (trace.has_error, trace.last_error) == (False, None)
    trace.record_error(ValueError("x"))
    assert trace.last_error is not None
    assert (trace.has_error, trace.last_error.type, trace.last_error.message) == (True, "ValueError", "x")


def test_a_judges_call_is_kept_as_it_was_asked_and_answered() -> None:
    class Answer(BaseModel):
        text: str

    trace = Trace()
    trace.record_judge_call("quality", [UserMessage("good?")], Answer(text="yes"))
    trace.record_judge_call(name="quality", request={"model": "m"}, response="no")
    assert trace.info["judge_calls"] == [
        {
            "name": "quality",
            "request": {"messages": [{"role": "user", "content": "good?"}]},
            "response": {"text": "yes"},
        },
        {"name": "quality", "request": {"model": "m"}, "response": "no"},
    ]


def test_of_a_long_question_to_a_judge_beginning_and_end_are_kept() -> None:
    trace, question = Trace(), f"begin {'x' * 50_000} end"
    trace.record_judge_call("quality", {"model": "m", "messages": [UserMessage(question)]}, "yes")
    kept = trace.info["judge_calls"][0]["request"]["messages"][0]["content"]
    assert len(kept) < 20_100 and kept.startswith("begin x") and kept.endswith("x end")
    assert "[30010 characters left out]" in kept


def test_a_trace_is_written_with_the_types_of_a_task() -> None:
    trace = Trace[str, int]()
    trace.state = 3
    assert trace.state + 1 == 4


def test_a_line_says_only_of_what_is_not_to_be_learned_from_that_it_is_not() -> None:
    assert "trainable" not in Trace().to_record()
    line = Trace(trainable=False).to_record()
    assert line["trainable"] is False and not Trace.from_record(line).trainable
    assert bare_record_of(Trace(trainable=False), ValueError("x"))["trainable"] is False


def test_a_line_of_before_says_in_its_info_that_it_is_not_to_be_learned_from() -> None:
    old = Trace(info={"trainable": False}).to_record()
    assert "trainable" not in old and not Trace.from_record(old).trainable
    assert Trace.from_record(Trace().to_record()).trainable
